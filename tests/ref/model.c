#include "tests/ref/model.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NORM_EPS 1e-5f
#define MOMENTUM 0.1f /* share of a new value in running statistics */

/* Indices of tensors; -1: the model has no such one. */
struct indices {
	int embedding, position, ballast, side;
	int norm1, norm1_bias, qkv, out;
	int norm2, norm2_bias, up, up_bias, down, down_bias;
	int head, head_bias;
	int mean, count;
};

/* Activations of one sample that backward needs, and gradients of them. */
struct activations {
	float *embedded; /* [length][width] */
	float *in; /* [length][width], after the side layer */
	float *normed1, *inverse1; /* [length][width], [length] */
	float *mixing; /* [length][width]: normed1, with weight and bias */
	float *qkv; /* [length][3 * width] */
	float *weights; /* [heads][length][length] */
	float *mixed; /* [length][width] */
	float *middle; /* [length][width], after attention */
	float *normed2, *inverse2;
	float *thinking; /* likewise of normed2 */
	float *up, *active; /* [length][hidden] */
	float *mask; /* [length][hidden]: 0 or 1 / (1 - dropout) */
	float *last; /* [length][width] */
	float *logits; /* [length][classes], then their gradient */
};

/* A sample of a pass. */
struct sample {
	const struct model_sample *s;
	struct activations a, d; /* d: gradients */
};

struct model {
	struct model_options o;
	struct model_tensor tensors[MODEL_TENSORS_MAX];
	uint32_t n_tensors;
	struct indices at;
	float *memory;
	struct sample *samples;
	uint32_t n_samples; /* that there is memory for */
};

/* --- Tensors ------------------------------------------------------------------------------------ */

static int add(struct model *m, enum model_module module, const char *name, uint64_t rows,
	       uint64_t columns)
{
	struct model_tensor *t = &m->tensors[m->n_tensors];

	assert(m->n_tensors < MODEL_TENSORS_MAX);
	*t = (struct model_tensor){
		.name = name,
		.module = module,
		.shape = {rows, columns},
		.n_dims = columns ? 2 : 1,
		.n = rows * (columns ? columns : 1),
		.decays = columns != 0,
	};
	return (int)m->n_tensors++;
}

static int add_buffer(struct model *m, const char *name, uint64_t n)
{
	int i = add(m, MODEL_HEAD, name, n, 0);

	m->tensors[i].is_buffer = true;
	return i;
}

/* In the order of the forward pass. */
static void add_tensors(struct model *m)
{
	const struct model_options *o = &m->o;

	m->at = (struct indices){-1, -1, -1, -1, -1, -1, -1, -1, -1,
				 -1, -1, -1, -1, -1, -1, -1, -1, -1};
	m->at.embedding = add(m, MODEL_EMBEDDING, "embedding.weight", o->vocab, o->width);
	m->at.position = add(m, MODEL_EMBEDDING, "position.weight", o->length, o->width);
	if (o->ballast)
		m->at.ballast = add(m, MODEL_BALLAST, "ballast.weight", o->ballast, o->width);
	if (o->has_side)
		m->at.side = add(m, MODEL_SIDE, "side.weight", o->width, o->width);
	if (!o->without_attention) {
		m->at.norm1 = add(m, MODEL_NORM1, "norm1.weight", o->width, 0);
		if (!o->rms_norm)
			m->at.norm1_bias = add(m, MODEL_NORM1, "norm1.bias", o->width, 0);
		m->at.qkv = add(m, MODEL_QKV, "attention.qkv.weight", 3ull * o->width, o->width);
		m->at.out = add(m, MODEL_OUT, "attention.out.weight", o->width, o->width);
	}
	m->at.norm2 = add(m, MODEL_NORM2, "norm2.weight", o->width, 0);
	if (!o->rms_norm)
		m->at.norm2_bias = add(m, MODEL_NORM2, "norm2.bias", o->width, 0);
	m->at.up = add(m, MODEL_UP, "mlp.up.weight", o->hidden, o->width);
	m->at.up_bias = add(m, MODEL_UP, "mlp.up.bias", o->hidden, 0);
	m->at.down = add(m, MODEL_DOWN, "mlp.down.weight", o->width, o->hidden);
	m->at.down_bias = add(m, MODEL_DOWN, "mlp.down.bias", o->width, 0);
	m->at.head = add(m, MODEL_HEAD, "head.weight", o->classes, o->width);
	m->at.head_bias = add(m, MODEL_HEAD, "head.bias", o->classes, 0);
	m->at.mean = add_buffer(m, "statistics.mean", o->width);
	m->at.count = add_buffer(m, "statistics.count", 1);
}

/* Cuts `memory` into activations; returns the number of floats. NULL: only counts. */
static size_t cut(const struct model_options *o, struct activations *a, float *memory)
{
	size_t t = o->length, at = 0;
	const struct {
		float **array;
		size_t n;
	} arrays[] = {
		{&a->embedded, t * o->width}, {&a->in, t * o->width},
		{&a->normed1, t * o->width},  {&a->inverse1, t},
		{&a->mixing, t * o->width},   {&a->thinking, t * o->width},
		{&a->qkv, t * 3 * o->width},  {&a->weights, o->heads * t * t},
		{&a->mixed, t * o->width},    {&a->middle, t * o->width},
		{&a->normed2, t * o->width},  {&a->inverse2, t},
		{&a->up, t * o->hidden},      {&a->active, t * o->hidden},
		{&a->mask, t * o->hidden},    {&a->last, t * o->width},
		{&a->logits, t * o->classes},
	};

	for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
		if (memory)
			*arrays[i].array = memory + at;
		at += arrays[i].n;
	}
	return at;
}

struct model *model_new(const struct model_options *options)
{
	struct model *m = calloc(1, sizeof(*m));

	assert(options->heads && options->width % options->heads == 0);
	if (!m)
		return NULL;
	m->o = *options;
	add_tensors(m);
	return m;
}

void model_free(struct model *m)
{
	if (m) {
		free(m->samples);
		free(m->memory);
	}
	free(m);
}

/* Makes room for the activations of as many samples. */
static void samples_make(struct model *m, uint32_t n)
{
	size_t size = cut(&m->o, &(struct activations){0}, NULL);

	if (n <= m->n_samples)
		return;
	free(m->samples);
	free(m->memory);
	m->samples = calloc(n, sizeof(*m->samples));
	m->memory = calloc(2 * n * size, sizeof(float));
	if (!m->samples || !m->memory)
		abort();
	for (uint32_t i = 0; i < n; i++) {
		(void)cut(&m->o, &m->samples[i].a, m->memory + 2 * i * size);
		(void)cut(&m->o, &m->samples[i].d, m->memory + (2 * i + 1) * size);
	}
	m->n_samples = n;
}

uint32_t model_n_tensors(const struct model *m)
{
	return m->n_tensors;
}

const struct model_tensor *model_tensor(const struct model *m, uint32_t i)
{
	return &m->tensors[i];
}

uint64_t model_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

float model_uniform(uint64_t *state)
{
	return (float)(model_random(state) >> 40) * 0x1p-24f;
}

void model_init(const struct model *m, uint32_t tensor, uint64_t seed, float *ret)
{
	const struct model_tensor *t = &m->tensors[tensor];
	float bound = sqrtf(3.0f / (float)t->shape[t->n_dims - 1]);
	uint64_t state = seed * 1000003 + tensor;
	bool is_norm = (int)tensor == m->at.norm1 || (int)tensor == m->at.norm2;

	for (uint64_t i = 0; i < t->n; i++)
		ret[i] = t->decays ? bound * (2 * model_uniform(&state) - 1) : is_norm ? 1 : 0;
}

/* --- Layers: y is [n][to], x is [n][from], w is [to][from] ---------------------------------------- */

static void linear_forward(float *y, const float *x, const float *w, const float *bias, size_t n,
			   size_t to, size_t from)
{
	for (size_t i = 0; i < n; i++)
		for (size_t j = 0; j < to; j++) {
			float sum = bias ? bias[j] : 0;

			for (size_t k = 0; k < from; k++)
				sum += x[i * from + k] * w[j * from + k];
			y[i * to + j] = sum;
		}
}

/* Adds to dx, dw and dbias. */
static void linear_backward(float *dx, float *dw, float *dbias, const float *dy, const float *x,
			    const float *w, size_t n, size_t to, size_t from)
{
	for (size_t i = 0; i < n; i++)
		for (size_t j = 0; j < to; j++) {
			float g = dy[i * to + j];

			for (size_t k = 0; k < from; k++) {
				dx[i * from + k] += g * w[j * from + k];
				dw[j * from + k] += g * x[i * from + k];
			}
			if (dbias)
				dbias[j] += g;
		}
}

/* Layer norm, or RMS norm without `bias`. normed: before weight and bias; inverse: 1 / deviation of each row. */
static void norm_forward(float *y, float *normed, float *inverse, const float *x,
			 const float *weight, const float *bias, size_t n, size_t width)
{
	for (size_t i = 0; i < n; i++) {
		const float *row = x + i * width;
		float mean = 0, squares = 0;

		for (size_t k = 0; bias && k < width; k++)
			mean += row[k] / (float)width;
		for (size_t k = 0; k < width; k++)
			squares += (row[k] - mean) * (row[k] - mean);
		inverse[i] = 1 / sqrtf(squares / (float)width + NORM_EPS);
		for (size_t k = 0; k < width; k++) {
			normed[i * width + k] = (row[k] - mean) * inverse[i];
			y[i * width + k] = normed[i * width + k] * weight[k] + (bias ? bias[k] : 0);
		}
	}
}

/* Adds to dx, dweight and dbias (NULL for RMS norm). */
static void norm_backward(float *dx, float *dweight, float *dbias, const float *dy,
			  const float *normed, const float *inverse, const float *weight, size_t n,
			  size_t width)
{
	for (size_t i = 0; i < n; i++) {
		const float *z = normed + i * width, *g = dy + i * width;
		float mean = 0, product = 0;

		for (size_t k = 0; k < width; k++) {
			dweight[k] += g[k] * z[k];
			if (dbias) {
				dbias[k] += g[k];
				mean += g[k] * weight[k] / (float)width;
			}
			product += g[k] * weight[k] * z[k] / (float)width;
		}
		for (size_t k = 0; k < width; k++)
			dx[i * width + k] += (g[k] * weight[k] - mean - z[k] * product) * inverse[i];
	}
}

/* Causal, by heads. qkv: [length][q, k, v][width]. */
static void attention_forward(const struct model_options *o, float *y, float *weights,
			      const float *qkv)
{
	size_t n = o->length, width = o->width, size = width / o->heads;
	float scale = 1 / sqrtf((float)size);

	for (size_t h = 0; h < o->heads; h++)
		for (size_t i = 0; i < n; i++) {
			const float *q = qkv + i * 3 * width + h * size;
			float *w = weights + (h * n + i) * n, *to = y + i * width + h * size;
			float top = -INFINITY, sum = 0;

			for (size_t j = 0; j <= i; j++) {
				const float *k = qkv + j * 3 * width + width + h * size;

				w[j] = 0;
				for (size_t c = 0; c < size; c++)
					w[j] += q[c] * k[c];
				w[j] *= scale;
				top = fmaxf(top, w[j]);
			}
			for (size_t j = 0; j <= i; j++)
				sum += w[j] = expf(w[j] - top);
			for (size_t c = 0; c < size; c++)
				to[c] = 0;
			for (size_t j = 0; j <= i; j++) {
				const float *v = qkv + j * 3 * width + 2 * width + h * size;

				w[j] /= sum;
				for (size_t c = 0; c < size; c++)
					to[c] += w[j] * v[c];
			}
		}
}

/* Adds to dqkv; dw is scratch for one row of weights. */
static void attention_backward(const struct model_options *o, float *dqkv, float *dw,
			       const float *dy, const float *weights, const float *qkv)
{
	size_t n = o->length, width = o->width, size = width / o->heads;
	float scale = 1 / sqrtf((float)size);

	for (size_t h = 0; h < o->heads; h++)
		for (size_t i = 0; i < n; i++) {
			size_t at_q = i * 3 * width + h * size;
			const float *w = weights + (h * n + i) * n, *g = dy + i * width + h * size;
			float product = 0;

			for (size_t j = 0; j <= i; j++) {
				size_t at_v = (j * 3 + 2) * width + h * size;

				dw[j] = 0;
				for (size_t c = 0; c < size; c++) {
					dw[j] += g[c] * qkv[at_v + c];
					dqkv[at_v + c] += w[j] * g[c];
				}
				product += dw[j] * w[j];
			}
			for (size_t j = 0; j <= i; j++) {
				size_t at_k = (j * 3 + 1) * width + h * size;
				float d = w[j] * (dw[j] - product) * scale;

				for (size_t c = 0; c < size; c++) {
					dqkv[at_q + c] += d * qkv[at_k + c];
					dqkv[at_k + c] += d * qkv[at_q + c];
				}
			}
		}
}

/* Returns the mean cross entropy, and leaves `scale` times its gradient in `logits`. */
static double entropy(float *logits, const uint32_t *targets, float scale, size_t n, size_t classes)
{
	double loss = 0;

	for (size_t i = 0; i < n; i++) {
		float *row = logits + i * classes, top = row[0], sum = 0;

		for (size_t k = 1; k < classes; k++)
			top = fmaxf(top, row[k]);
		for (size_t k = 0; k < classes; k++)
			sum += expf(row[k] - top);
		loss += log((double)sum) - (double)(row[targets[i]] - top);
		for (size_t k = 0; k < classes; k++)
			row[k] = (expf(row[k] - top) / sum - (k == targets[i] ? 1 : 0)) * scale /
				 (float)n;
	}
	return loss / (double)n;
}

/* --- Modules: forward, and backward, of one sample -------------------------------------------------- */

static const float *param(const struct model_pass *p, int tensor)
{
	return tensor < 0 ? NULL : p->params[tensor];
}

static float *grad(const struct model_pass *p, int tensor)
{
	return tensor < 0 ? NULL : p->grads[tensor];
}

static size_t size_of(const struct model *m)
{
	return (size_t)m->o.length * m->o.width * sizeof(float);
}

static void embedding_forward(const struct model *m, struct sample *x, const struct model_pass *p)
{
	size_t width = m->o.width;
	const float *tokens = param(p, m->at.embedding), *positions = param(p, m->at.position);

	for (size_t i = 0; i < m->o.length; i++)
		for (size_t k = 0; k < width; k++)
			x->a.embedded[i * width + k] = tokens[x->s->tokens[i] * width + k] +
						       positions[i * width + k];
	memcpy(x->a.in, x->a.embedded, size_of(m));
	memcpy(x->a.middle, x->a.in, size_of(m));
}

static void embedding_backward(const struct model *m, struct sample *x, const struct model_pass *p)
{
	size_t width = m->o.width;
	float *tokens = grad(p, m->at.embedding), *positions = grad(p, m->at.position);

	for (size_t i = 0; i < m->o.length; i++)
		for (size_t k = 0; k < width; k++) {
			tokens[x->s->tokens[i] * width + k] += x->d.last[i * width + k];
			positions[i * width + k] += x->d.last[i * width + k];
		}
}

static void side_forward(const struct model *m, struct sample *x, const struct model_pass *p)
{
	size_t n = m->o.length, width = m->o.width;
	float *y = x->d.last; /* scratch: free until backward */

	if (!x->s->uses_side)
		return;
	linear_forward(y, x->a.embedded, param(p, m->at.side), NULL, n, width, width);
	for (size_t i = 0; i < n * width; i++)
		x->a.in[i] += y[i];
	memcpy(x->a.middle, x->a.in, size_of(m));
}

static void side_backward(const struct model *m, struct sample *x, const struct model_pass *p)
{
	if (!x->s->uses_side)
		return;
	memcpy(x->d.in, x->d.last, size_of(m));
	linear_backward(x->d.last, grad(p, m->at.side), NULL, x->d.in, x->a.embedded,
			param(p, m->at.side), m->o.length, m->o.width, m->o.width);
}

static void norm1_forward(const struct model *m, struct sample *x, const struct model_pass *p)
{
	norm_forward(x->a.mixing, x->a.normed1, x->a.inverse1, x->a.in, param(p, m->at.norm1),
		     param(p, m->at.norm1_bias), m->o.length, m->o.width);
}

/* d.last is the gradient of `middle`, and becomes that of `in`. */
static void norm1_backward(const struct model *m, struct sample *x, const struct model_pass *p)
{
	norm_backward(x->d.last, grad(p, m->at.norm1), grad(p, m->at.norm1_bias), x->d.normed1,
		      x->a.normed1, x->a.inverse1, param(p, m->at.norm1), m->o.length, m->o.width);
}

static void qkv_forward(const struct model *m, struct sample *x, const struct model_pass *p)
{
	size_t n = m->o.length, width = m->o.width;

	linear_forward(x->a.qkv, x->a.mixing, param(p, m->at.qkv), NULL, n, 3 * width, width);
	attention_forward(&m->o, x->a.mixed, x->a.weights, x->a.qkv);
}

static void qkv_backward(const struct model *m, struct sample *x, const struct model_pass *p)
{
	size_t n = m->o.length, width = m->o.width;

	memset(x->d.qkv, 0, 3 * size_of(m));
	memset(x->d.normed1, 0, size_of(m));
	attention_backward(&m->o, x->d.qkv, x->d.weights, x->d.mixed, x->a.weights, x->a.qkv);
	linear_backward(x->d.normed1, grad(p, m->at.qkv), NULL, x->d.qkv, x->a.mixing,
			param(p, m->at.qkv), n, 3 * width, width);
}

static void out_forward(const struct model *m, struct sample *x, const struct model_pass *p)
{
	size_t n = m->o.length, width = m->o.width;
	float *y = x->d.last; /* scratch */

	linear_forward(y, x->a.mixed, param(p, m->at.out), NULL, n, width, width);
	for (size_t i = 0; i < n * width; i++)
		x->a.middle[i] += y[i];
}

static void out_backward(const struct model *m, struct sample *x, const struct model_pass *p)
{
	memset(x->d.mixed, 0, size_of(m));
	linear_backward(x->d.mixed, grad(p, m->at.out), NULL, x->d.last, x->a.mixed,
			param(p, m->at.out), m->o.length, m->o.width, m->o.width);
}

static void norm2_forward(const struct model *m, struct sample *x, const struct model_pass *p)
{
	norm_forward(x->a.thinking, x->a.normed2, x->a.inverse2, x->a.middle, param(p, m->at.norm2),
		     param(p, m->at.norm2_bias), m->o.length, m->o.width);
}

/* d.last is the gradient of the block's output, and becomes that of `middle`. */
static void norm2_backward(const struct model *m, struct sample *x, const struct model_pass *p)
{
	norm_backward(x->d.last, grad(p, m->at.norm2), grad(p, m->at.norm2_bias), x->d.normed2,
		      x->a.normed2, x->a.inverse2, param(p, m->at.norm2), m->o.length, m->o.width);
}

static void up_forward(const struct model *m, struct sample *x, const struct model_pass *p)
{
	struct activations *a = &x->a;
	float dropout = (float)m->o.dropout;

	linear_forward(a->up, a->thinking, param(p, m->at.up), param(p, m->at.up_bias), m->o.length,
		       m->o.hidden, m->o.width);
	for (size_t i = 0; i < (size_t)m->o.length * m->o.hidden; i++) {
		bool drop = dropout > 0 && model_uniform(p->rng) < dropout;

		a->mask[i] = drop ? 0 : 1 / (1 - dropout);
		a->active[i] = tanhf(a->up[i]) * a->mask[i];
	}
}

static void up_backward(const struct model *m, struct sample *x, const struct model_pass *p)
{
	struct activations *d = &x->d;

	for (size_t i = 0; i < (size_t)m->o.length * m->o.hidden; i++) {
		float y = tanhf(x->a.up[i]);

		d->up[i] = d->active[i] * x->a.mask[i] * (1 - y * y);
	}
	memset(d->normed2, 0, size_of(m));
	linear_backward(d->normed2, grad(p, m->at.up), grad(p, m->at.up_bias), d->up, x->a.thinking,
			param(p, m->at.up), m->o.length, m->o.hidden, m->o.width);
}

static void down_forward(const struct model *m, struct sample *x, const struct model_pass *p)
{
	size_t n = m->o.length, width = m->o.width;

	linear_forward(x->a.last, x->a.active, param(p, m->at.down), param(p, m->at.down_bias), n,
		       width, m->o.hidden);
	for (size_t i = 0; i < n * width; i++)
		x->a.last[i] += x->a.middle[i];
}

static void down_backward(const struct model *m, struct sample *x, const struct model_pass *p)
{
	size_t n = m->o.length;

	memset(x->d.active, 0, n * m->o.hidden * sizeof(float));
	linear_backward(x->d.active, grad(p, m->at.down), grad(p, m->at.down_bias), x->d.last,
			x->a.active, param(p, m->at.down), n, m->o.width, m->o.hidden);
}

static void head_forward(const struct model *m, struct sample *x, const struct model_pass *p)
{
	linear_forward(x->a.logits, x->a.last, param(p, m->at.head), param(p, m->at.head_bias),
		       m->o.length, m->o.classes, m->o.width);
}

static void head_backward(const struct model *m, struct sample *x, const struct model_pass *p)
{
	memset(x->d.last, 0, size_of(m));
	linear_backward(x->d.last, grad(p, m->at.head), grad(p, m->at.head_bias), x->a.logits,
			x->a.last, param(p, m->at.head), m->o.length, m->o.classes, m->o.width);
}

typedef void module_fn(const struct model *m, struct sample *x, const struct model_pass *p);

static const struct module {
	module_fn *forward, *backward; /* NULL: nothing to compute */
} modules[MODEL_MODULES] = {
	[MODEL_EMBEDDING] = {embedding_forward, embedding_backward},
	[MODEL_BALLAST] = {NULL, NULL},
	[MODEL_SIDE] = {side_forward, side_backward},
	[MODEL_NORM1] = {norm1_forward, norm1_backward},
	[MODEL_QKV] = {qkv_forward, qkv_backward},
	[MODEL_OUT] = {out_forward, out_backward},
	[MODEL_NORM2] = {norm2_forward, norm2_backward},
	[MODEL_UP] = {up_forward, up_backward},
	[MODEL_DOWN] = {down_forward, down_backward},
	[MODEL_HEAD] = {head_forward, head_backward},
};

/* --- Passes ------------------------------------------------------------------------------------- */

static bool has_module(const struct model *m, enum model_module module)
{
	for (uint32_t i = 0; i < m->n_tensors; i++)
		if (m->tensors[i].module == module)
			return true;
	return false;
}

static void enter(const struct model_pass *p, enum model_module module, bool is_backward)
{
	if (p->enter)
		p->enter(p->arg, module, is_backward);
}

/* Those of a module, the last one first; a table that has no gradient is left out. */
static void complete(const struct model *m, enum model_module module, const struct model_pass *p)
{
	for (uint32_t i = m->n_tensors; p->complete && modules[module].backward && i-- > 0;)
		if (m->tensors[i].module == module && !m->tensors[i].is_buffer)
			p->complete(p->arg, i);
}

static void forward(const struct model *m, uint32_t n, const struct model_pass *p)
{
	for (enum model_module k = 0; k < MODEL_MODULES; k++) {
		if (!has_module(m, k))
			continue;
		enter(p, k, false);
		for (uint32_t i = 0; modules[k].forward && i < n; i++)
			modules[k].forward(m, &m->samples[i], p);
	}
}

static void backward(const struct model *m, uint32_t n, const struct model_pass *p)
{
	for (enum model_module k = MODEL_MODULES; k-- > 0;) {
		if (!has_module(m, k))
			continue;
		enter(p, k, true);
		for (uint32_t i = 0; modules[k].backward && i < n; i++)
			modules[k].backward(m, &m->samples[i], p);
		complete(m, k, p);
	}
}

/* Running statistics of `last`, as a batch norm has them. */
static void count(const struct model *m, const struct sample *x, const struct model_pass *p)
{
	float *mean = p->buffers[m->at.mean];
	size_t n = m->o.length, width = m->o.width;

	for (size_t k = 0; k < width; k++) {
		float sum = 0;

		for (size_t i = 0; i < n; i++)
			sum += x->a.last[i * width + k];
		mean[k] += MOMENTUM * (sum / (float)n - mean[k]);
	}
	*(uint64_t *)p->buffers[m->at.count] += n;
}

double model_run(struct model *m, const struct model_sample *samples, uint32_t n,
		 const struct model_pass *p)
{
	double loss = 0;

	samples_make(m, n);
	for (uint32_t i = 0; i < n; i++)
		m->samples[i].s = &samples[i];
	forward(m, n, p);
	for (uint32_t i = 0; i < n; i++) {
		if (p->buffers)
			count(m, &m->samples[i], p);
		loss += entropy(m->samples[i].a.logits, samples[i].targets, p->scale, m->o.length,
				m->o.classes);
	}
	enter(p, MODEL_MODULES, false);
	if (p->grads)
		backward(m, n, p);
	return loss;
}
