/*
 * A stand-in for libibverbs.so.1
 *
 * Of its control path, with the versions of the real one's symbols: of what there are two, the old one calls the new
 * one, and the three that register memory end in one another. Nothing is connected to anything. A device is whatever
 * one says it is; what is asked of NULL fails.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define OLD(name) __asm__(".symver " #name "_old, " #name "@IBVERBS_1.0")
#define NEW(name) __asm__(".symver " #name "_new, " #name "@@IBVERBS_1.1")

/* Called, and not become a part of what calls it. */
#define PROBED __attribute__((noipa))

struct ibv_qp {
	void *pointers[6];
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

static uint32_t last_qp = 0x100;
static int memory;

void *ibv_open_device_new(void *device);
void *ibv_open_device_old(void *device);
struct ibv_qp *ibv_create_qp_new(void *domain, const struct ibv_qp_init_attr *attr);
struct old_qp *ibv_create_qp_old(void *domain, const struct ibv_qp_init_attr *attr);
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

PROBED struct ibv_qp *ibv_create_qp_new(void *domain, const struct ibv_qp_init_attr *attr)
{
	struct ibv_qp *qp = domain ? calloc(1, sizeof(*qp)) : NULL;

	if (qp) {
		qp->qp_num = ++last_qp;
		qp->qp_type = attr->qp_type;
	}
	return qp;
}

struct old_qp *ibv_create_qp_old(void *domain, const struct ibv_qp_init_attr *attr)
{
	struct old_qp *qp = calloc(1, sizeof(*qp));

	if (!qp)
		return NULL;
	qp->real = ibv_create_qp_new(domain, attr);
	if (!qp->real) {
		free(qp);
		return NULL;
	}
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
