/*
 * A stand-in for libibverbs.so.1
 *
 * Its control path, with the versions of the real one's symbols: where there are two, the old one
 * calls the new one, and the three that register memory end in one another. Nothing is connected. A
 * device has any name that is asked for, and numbers its own queue pairs; calls with NULL fail.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define OLD(name) __asm__(".symver " #name "_old, " #name "@IBVERBS_1.0")
#define NEW(name) __asm__(".symver " #name "_new, " #name "@@IBVERBS_1.1")

#define DEVICES_MAX 8

/* Called, and not become a part of what calls it. */
#define PROBED __attribute__((noipa))

struct ibv_context {
	void *device;
};

struct ibv_pd {
	struct ibv_context *context;
};

struct ibv_qp {
	struct ibv_context *context;
	void *pointers[5];
	uint32_t handle, qp_num, state, qp_type;
};

struct ibv_qp_init_attr {
	void *pointers[4];
	uint32_t capabilities[5];
	uint32_t qp_type;
	int signals_all;
};

struct old_qp {
	struct ibv_qp qp;
	struct ibv_qp *real;
};

static struct {
	const void *device;
	uint32_t last_qp;
} devices[DEVICES_MAX];
static int memory;

void *ibv_open_device_new(void *device);
void *ibv_open_device_old(void *device);
struct ibv_qp *ibv_create_qp_new(struct ibv_pd *domain, const struct ibv_qp_init_attr *attr);
struct old_qp *ibv_create_qp_old(struct ibv_pd *domain, const struct ibv_qp_init_attr *attr);
int ibv_modify_qp_new(struct ibv_qp *qp, const uint32_t *attr, int mask);
int ibv_modify_qp_old(struct old_qp *qp, const uint32_t *attr, int mask);
int ibv_destroy_qp_new(struct ibv_qp *qp);
int ibv_destroy_qp_old(struct old_qp *qp);
void *ibv_reg_mr_iova2(void *domain, void *address, size_t size, uint64_t iova, unsigned access);
void *ibv_reg_mr_iova(void *domain, void *address, size_t size, uint64_t iova, int access);
void *ibv_reg_mr_new(void *domain, void *address, size_t size, int access);
void *ibv_reg_mr_old(void *domain, void *address, size_t size, int access);
void *ibv_reg_dmabuf_mr(void *domain, uint64_t offset, size_t size, uint64_t iova, int fd,
			int access);

PROBED void *ibv_open_device_new(void *device)
{
	return device;
}

void *ibv_open_device_old(void *device)
{
	return ibv_open_device_new(device);
}

static uint32_t next_qp(const void *device)
{
	unsigned i = 0;

	while (devices[i].device && devices[i].device != device)
		if (++i == DEVICES_MAX)
			abort();
	devices[i].device = device;
	return 0x100 + ++devices[i].last_qp;
}

PROBED struct ibv_qp *ibv_create_qp_new(struct ibv_pd *domain, const struct ibv_qp_init_attr *attr)
{
	struct ibv_qp *qp = domain ? calloc(1, sizeof(*qp)) : NULL;

	if (qp) {
		qp->context = domain->context;
		qp->qp_num = next_qp(domain->context->device);
		qp->qp_type = attr->qp_type;
	}
	return qp;
}

struct old_qp *ibv_create_qp_old(struct ibv_pd *domain, const struct ibv_qp_init_attr *attr)
{
	struct old_qp *qp = calloc(1, sizeof(*qp));

	if (!qp)
		return NULL;
	qp->real = ibv_create_qp_new(domain, attr);
	if (!qp->real) {
		free(qp);
		return NULL;
	}
	qp->qp.context = qp->real->context;
	qp->qp.qp_num = qp->real->qp_num;
	return qp;
}

PROBED int ibv_modify_qp_new(struct ibv_qp *qp, const uint32_t *attr, int mask)
{
	if (!attr || !mask)
		return EINVAL;
	qp->state = *attr;
	return 0;
}

int ibv_modify_qp_old(struct old_qp *qp, const uint32_t *attr, int mask)
{
	return ibv_modify_qp_new(qp->real, attr, mask);
}

PROBED int ibv_destroy_qp_new(struct ibv_qp *qp)
{
	free(qp);
	return 0;
}

int ibv_destroy_qp_old(struct old_qp *qp)
{
	int r = ibv_destroy_qp_new(qp->real);

	free(qp);
	return r;
}

PROBED void *ibv_reg_mr_iova2(void *domain, void *address, size_t size, uint64_t iova,
			      unsigned access)
{
	(void)address;
	(void)iova;
	(void)access;
	return domain && size ? &memory : NULL;
}

void *ibv_reg_mr_iova(void *domain, void *address, size_t size, uint64_t iova, int access)
{
	return ibv_reg_mr_iova2(domain, address, size, iova, (unsigned)access);
}

PROBED void *ibv_reg_mr_new(void *domain, void *address, size_t size, int access)
{
	return ibv_reg_mr_iova2(domain, address, size, (uintptr_t)address, (unsigned)access);
}

void *ibv_reg_mr_old(void *domain, void *address, size_t size, int access)
{
	return ibv_reg_mr_new(domain, address, size, access);
}

void *ibv_reg_dmabuf_mr(void *domain, uint64_t offset, size_t size, uint64_t iova, int fd,
			int access)
{
	(void)offset;
	(void)iova;
	(void)access;
	return domain && size && fd >= 0 ? &memory : NULL;
}

OLD(ibv_open_device);
NEW(ibv_open_device);
OLD(ibv_create_qp);
NEW(ibv_create_qp);
OLD(ibv_modify_qp);
NEW(ibv_modify_qp);
OLD(ibv_destroy_qp);
NEW(ibv_destroy_qp);
OLD(ibv_reg_mr);
NEW(ibv_reg_mr);
