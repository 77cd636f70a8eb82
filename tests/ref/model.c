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
	float *qkv; /* [length][3 * width] */
	float *weights; /* [heads][length][length] */
	float *mixed; /* [length][width] */
	float *middle; /* [length][width], after attention */
	float *normed2, *inverse2;
	float *up, *active; /* [length][hidden] */
	float *mask; /* [length][hidden]: 0 or 1 / (1 - dropout) */
	float *last; /* [length][width] */
	float *logits; /* [length][classes], then their gradient */
};

struct model {
	struct model_options o;
	struct model_tensor tensors[MODEL_TENSORS_MAX];
	uint32_t n_tensors;
	struct indices at;
	float *memory;
	struct activations a, d; /* d: gradients */
};

/* --- Tensors ------------------------------------------------------------------------------------ */

static int add(struct model *m, const char *name, uint64_t rows, uint64_t columns)
{
	struct model_tensor *t = &m->tensors[m->n_tensors];

	assert(m->n_tensors < MODEL_TENSORS_MAX);
	*t = (struct model_tensor){
		.name = name,
		.shape = {rows, columns},
		.n_dims = columns ? 2 : 1,
		.n = rows * (columns ? columns : 1),
		.decays = columns != 0,
	};
	return (int)m->n_tensors++;
}

static int add_buffer(struct model *m, const char *name, uint64_t n)
{
	int i = add(m, name, n, 0);

	m->tensors[i].is_buffer = true;
	return i;
}

/* In the order of the forward pass. */
static void add_tensors(struct model *m)
{
	const struct model_options *o = &m->o;

	m->at = (struct indices){-1, -1, -1, -1, -1, -1, -1, -1, -1,
				 -1, -1, -1, -1, -1, -1, -1, -1, -1};
	m->at.embedding = add(m, "embedding.weight", o->vocab, o->width);
	m->at.position = add(m, "position.weight", o->length, o->width);
	if (o->ballast)
		m->at.ballast = add(m, "ballast.weight", o->ballast, o->width);
	if (o->has_side)
		m->at.side = add(m, "side.weight", o->width, o->width);
	if (!o->without_attention) {
		m->at.norm1 = add(m, "norm1.weight", o->width, 0);
		if (!o->rms_norm)
			m->at.norm1_bias = add(m, "norm1.bias", o->width, 0);
		m->at.qkv = add(m, "attention.qkv.weight", 3ull * o->width, o->width);
		m->at.out = add(m, "attention.out.weight", o->width, o->width);
	}
	m->at.norm2 = add(m, "norm2.weight", o->width, 0);
	if (!o->rms_norm)
		m->at.norm2_bias = add(m, "norm2.bias", o->width, 0);
	m->at.up = add(m, "mlp.up.weight", o->hidden, o->width);
	m->at.up_bias = add(m, "mlp.up.bias", o->hidden, 0);
	m->at.down = add(m, "mlp.down.weight", o->width, o->hidden);
	m->at.down_bias = add(m, "mlp.down.bias", o->width, 0);
	m->at.head = add(m, "head.weight", o->classes, o->width);
	m->at.head_bias = add(m, "head.bias", o->classes, 0);
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
	size_t n;

	assert(options->heads && options->width % options->heads == 0);
	if (!m)
		return NULL;
	m->o = *options;
	add_tensors(m);
	n = cut(&m->o, &m->a, NULL);
	m->memory = calloc(2 * n, sizeof(float));
	if (!m->memory) {
		free(m);
		return NULL;
	}
	(void)cut(&m->o, &m->a, m->memory);
	(void)cut(&m->o, &m->d, m->memory + n);
	return m;
}

void model_free(struct model *m)
{
	if (m)
		free(m->memory);
	free(m);
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

/* --- Passes ------------------------------------------------------------------------------------- */

static const float *param(const struct model_pass *p, int tensor)
{
	return tensor < 0 ? NULL : p->params[tensor];
}

static float *grad(const struct model_pass *p, int tensor)
{
	return tensor < 0 ? NULL : p->grads[tensor];
}

static void complete(const struct model_pass *p, int tensor)
{
	if (p->complete && tensor >= 0)
		p->complete(p->arg, (uint32_t)tensor);
}

static void embed(struct model *m, const struct model_sample *s, const struct model_pass *p)
{
	size_t width = m->o.width;
	const float *tokens = param(p, m->at.embedding), *positions = param(p, m->at.position);

	for (size_t i = 0; i < m->o.length; i++)
		for (size_t k = 0; k < width; k++)
			m->a.embedded[i * width + k] = tokens[s->tokens[i] * width + k] +
						       positions[i * width + k];
}

static void activate(struct model *m, const struct model_pass *p)
{
	struct activations *a = &m->a;

	float dropout = (float)m->o.dropout;

	for (size_t i = 0; i < (size_t)m->o.length * m->o.hidden; i++) {
		bool drop = dropout > 0 && model_uniform(p->rng) < dropout;

		a->mask[i] = drop ? 0 : 1 / (1 - dropout);
		a->active[i] = tanhf(a->up[i]) * a->mask[i];
	}
}

/* Running statistics of `last`, as a batch norm has them. */
static void count(struct model *m, const struct model_pass *p)
{
	float *mean = p->buffers[m->at.mean];
	size_t n = m->o.length, width = m->o.width;

	for (size_t k = 0; k < width; k++) {
		float sum = 0;

		for (size_t i = 0; i < n; i++)
			sum += m->a.last[i * width + k];
		mean[k] += MOMENTUM * (sum / (float)n - mean[k]);
	}
	*(uint64_t *)p->buffers[m->at.count] += n;
}

static void forward(struct model *m, const struct model_sample *s, const struct model_pass *p)
{
	const struct model_options *o = &m->o;
	struct activations *a = &m->a;
	size_t n = o->length, width = o->width, size = n * width * sizeof(float);
	float *y = m->d.last; /* scratch: free until backward */

	embed(m, s, p);
	memcpy(a->in, a->embedded, size);
	if (o->has_side && s->uses_side) {
		linear_forward(y, a->embedded, param(p, m->at.side), NULL, n, width, width);
		for (size_t i = 0; i < n * width; i++)
			a->in[i] += y[i];
	}
	memcpy(a->middle, a->in, size);
	if (!o->without_attention) {
		norm_forward(y, a->normed1, a->inverse1, a->in, param(p, m->at.norm1),
			     param(p, m->at.norm1_bias), n, width);
		linear_forward(a->qkv, y, param(p, m->at.qkv), NULL, n, 3 * width, width);
		attention_forward(o, a->mixed, a->weights, a->qkv);
		linear_forward(y, a->mixed, param(p, m->at.out), NULL, n, width, width);
		for (size_t i = 0; i < n * width; i++)
			a->middle[i] += y[i];
	}
	norm_forward(m->d.middle, a->normed2, a->inverse2, a->middle, param(p, m->at.norm2),
		     param(p, m->at.norm2_bias), n, width);
	linear_forward(a->up, m->d.middle, param(p, m->at.up), param(p, m->at.up_bias), n,
		       o->hidden, width);
	activate(m, p);
	linear_forward(a->last, a->active, param(p, m->at.down), param(p, m->at.down_bias), n,
		       width, o->hidden);
	for (size_t i = 0; i < n * width; i++)
		a->last[i] += a->middle[i];
	linear_forward(a->logits, a->last, param(p, m->at.head), param(p, m->at.head_bias), n,
		       o->classes, width);
}

/* The output of a norm again, from what forward kept of it. */
static void norm_again(float *y, const float *normed, const float *weight, const float *bias,
		       size_t n, size_t width)
{
	for (size_t i = 0; i < n * width; i++)
		y[i] = normed[i] * weight[i % width] + (bias ? bias[i % width] : 0);
}

/* d.last is the gradient of the block's output, and becomes that of `middle`. */
static void mlp_backward(struct model *m, const struct model_pass *p)
{
	const struct model_options *o = &m->o;
	struct activations *a = &m->a, *d = &m->d;
	size_t n = o->length, width = o->width;

	memset(d->active, 0, n * o->hidden * sizeof(float));
	linear_backward(d->active, grad(p, m->at.down), grad(p, m->at.down_bias), d->last,
			a->active, param(p, m->at.down), n, width, o->hidden);
	complete(p, m->at.down_bias);
	complete(p, m->at.down);
	for (size_t i = 0; i < n * o->hidden; i++) {
		float y = tanhf(a->up[i]);

		d->up[i] = d->active[i] * a->mask[i] * (1 - y * y);
	}
	norm_again(d->normed1, a->normed2, param(p, m->at.norm2), param(p, m->at.norm2_bias), n,
		   width);
	memset(d->normed2, 0, n * width * sizeof(float));
	linear_backward(d->normed2, grad(p, m->at.up), grad(p, m->at.up_bias), d->up, d->normed1,
			param(p, m->at.up), n, o->hidden, width);
	complete(p, m->at.up_bias);
	complete(p, m->at.up);
	norm_backward(d->last, grad(p, m->at.norm2), grad(p, m->at.norm2_bias), d->normed2,
		      a->normed2, a->inverse2, param(p, m->at.norm2), n, width);
	complete(p, m->at.norm2_bias);
	complete(p, m->at.norm2);
}

/* d.last is the gradient of `middle`, and becomes that of `in`. */
static void mixing_backward(struct model *m, const struct model_pass *p)
{
	const struct model_options *o = &m->o;
	struct activations *a = &m->a, *d = &m->d;
	size_t n = o->length, width = o->width;

	memset(d->mixed, 0, n * width * sizeof(float));
	memset(d->qkv, 0, 3 * n * width * sizeof(float));
	memset(d->normed2, 0, n * width * sizeof(float));
	linear_backward(d->mixed, grad(p, m->at.out), NULL, d->last, a->mixed, param(p, m->at.out),
			n, width, width);
	complete(p, m->at.out);
	attention_backward(o, d->qkv, d->weights, d->mixed, a->weights, a->qkv);
	norm_again(d->normed1, a->normed1, param(p, m->at.norm1), param(p, m->at.norm1_bias), n,
		   width);
	linear_backward(d->normed2, grad(p, m->at.qkv), NULL, d->qkv, d->normed1,
			param(p, m->at.qkv), n, 3 * width, width);
	complete(p, m->at.qkv);
	norm_backward(d->last, grad(p, m->at.norm1), grad(p, m->at.norm1_bias), d->normed2,
		      a->normed1, a->inverse1, param(p, m->at.norm1), n, width);
	complete(p, m->at.norm1_bias);
	complete(p, m->at.norm1);
}

static void backward(struct model *m, const struct model_sample *s, const struct model_pass *p)
{
	const struct model_options *o = &m->o;
	struct activations *a = &m->a, *d = &m->d;
	size_t n = o->length, width = o->width, size = n * width * sizeof(float);
	float *tokens = grad(p, m->at.embedding), *positions = grad(p, m->at.position);

	memset(d->last, 0, size);
	linear_backward(d->last, grad(p, m->at.head), grad(p, m->at.head_bias), a->logits, a->last,
			param(p, m->at.head), n, o->classes, width);
	complete(p, m->at.head_bias);
	complete(p, m->at.head);
	mlp_backward(m, p);
	if (!o->without_attention)
		mixing_backward(m, p);
	if (o->has_side && s->uses_side) {
		memcpy(d->in, d->last, size);
		linear_backward(d->last, grad(p, m->at.side), NULL, d->in, a->embedded,
				param(p, m->at.side), n, width, width);
		complete(p, m->at.side);
	}
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < width; k++) {
			tokens[s->tokens[i] * width + k] += d->last[i * width + k];
			positions[i * width + k] += d->last[i * width + k];
		}
	complete(p, m->at.position);
	complete(p, m->at.embedding);
}

double model_run(struct model *m, const struct model_sample *s, const struct model_pass *p)
{
	double loss;

	forward(m, s, p);
	if (p->buffers)
		count(m, p);
	loss = entropy(m->a.logits, s->targets, p->scale, m->o.length, m->o.classes);
	if (p->grads)
		backward(m, s, p);
	return loss;
}
