/*
 * GGUF files, versions 2 and 3 (they differ only in byte order marks): a header, key-value
 * pairs, a tensor table, then the data. The reader walks the map with a cursor that cannot pass
 * the end; every count is held against the bytes that are left before anything is allocated.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "model/private.h"

enum gguf_type {
	GGUF_UINT8,
	GGUF_INT8,
	GGUF_UINT16,
	GGUF_INT16,
	GGUF_UINT32,
	GGUF_INT32,
	GGUF_FLOAT32,
	GGUF_BOOL,
	GGUF_STRING,
	GGUF_ARRAY,
	GGUF_UINT64,
	GGUF_INT64,
	GGUF_FLOAT64,
	GGUF_TYPE_COUNT,
};

#define GGUF_ALIGNMENT_DEFAULT 32
#define GGUF_NAME_BYTES_MAX 255
#define GGUF_KEYS_MAX 65536
#define GGUF_TENSORS_MAX 65536

static const uint8_t gguf_type_bytes[GGUF_TYPE_COUNT] = {
	[GGUF_UINT8] = 1,   [GGUF_INT8] = 1,   [GGUF_UINT16] = 2, [GGUF_INT16] = 2,
	[GGUF_UINT32] = 4,  [GGUF_INT32] = 4,  [GGUF_FLOAT32] = 4, [GGUF_BOOL] = 1,
	[GGUF_UINT64] = 8,  [GGUF_INT64] = 8,  [GGUF_FLOAT64] = 8,
};

/* A value of the metadata: of a scalar or string @data is its first byte; of an array it is the
 * first element, @count of them of type @element. */
struct gguf_value {
	struct text key;
	enum gguf_type type, element;
	uint64_t count;
	struct text data;
};

struct gguf {
	struct model *model;
	const char *start, *at, *end; /* the map and the cursor */
	struct gguf_value *values;
	uint32_t value_count;
	char arch[16]; /* prefix of the architecture's keys */
};

static size_t gguf_left(const struct gguf *g)
{
	return (size_t)(g->end - g->at);
}

static int gguf_truncated(struct gguf *g)
{
	return model__fail(g->model, "the file ends within its header (at byte %zu)",
			   (size_t)(g->at - g->start));
}

static int read_bytes(struct gguf *g, void *ret, size_t bytes)
{
	if (gguf_left(g) < bytes)
		return gguf_truncated(g);
	memcpy(ret, g->at, bytes);
	g->at += bytes;
	return 0;
}

static int read_text(struct gguf *g, struct text *ret)
{
	uint64_t bytes = 0;
	int error = read_bytes(g, &bytes, sizeof(bytes));
	if (error < 0)
		return error;
	if (bytes > gguf_left(g))
		return gguf_truncated(g);
	*ret = (struct text){ g->at, bytes };
	g->at += bytes;
	return 0;
}

static int read_array(struct gguf *g, struct gguf_value *value)
{
	uint32_t element = 0;
	int error;
	if ((error = read_bytes(g, &element, sizeof(element))) < 0 ||
	    (error = read_bytes(g, &value->count, sizeof(value->count))) < 0)
		return error;
	if (element >= GGUF_TYPE_COUNT || element == GGUF_ARRAY)
		return model__fail(g->model, "%.*s is an array of type %u, which is not supported",
				   (int)MIN(value->key.bytes, (size_t)200), value->key.data, element);
	value->element = (enum gguf_type)element;
	value->data.data = g->at;
	if (element != GGUF_STRING) {
		if (value->count > gguf_left(g) / gguf_type_bytes[element])
			return gguf_truncated(g);
		g->at += value->count * gguf_type_bytes[element];
	}
	for (uint64_t i = 0; element == GGUF_STRING && i < value->count; i++) {
		struct text text; /* at least 8 bytes each: the file's end bounds the loop */
		if ((error = read_text(g, &text)) < 0)
			return error;
	}
	value->data.bytes = (size_t)(g->at - value->data.data);
	return 0;
}

static int read_value(struct gguf *g, struct gguf_value *value)
{
	uint32_t type = 0;
	int error;
	if ((error = read_text(g, &value->key)) < 0 ||
	    (error = read_bytes(g, &type, sizeof(type))) < 0)
		return error;
	if (type >= GGUF_TYPE_COUNT)
		return model__fail(g->model, "%.*s has the value type %u; GGUF knows 0..%d",
				   (int)MIN(value->key.bytes, (size_t)200), value->key.data, type,
				   GGUF_TYPE_COUNT - 1);
	value->type = (enum gguf_type)type;
	if (value->type == GGUF_ARRAY)
		return read_array(g, value);
	if (value->type == GGUF_STRING)
		return read_text(g, &value->data);
	value->data = (struct text){ g->at, gguf_type_bytes[type] };
	if (gguf_left(g) < value->data.bytes)
		return gguf_truncated(g);
	g->at += value->data.bytes;
	return 0;
}

static const struct gguf_value *find(const struct gguf *g, const char *key)
{
	for (uint32_t i = 0; i < g->value_count; i++) {
		if (text_is(g->values[i].key, key))
			return &g->values[i];
	}
	return NULL;
}

static bool read_integer(const struct gguf_value *value, int64_t *ret)
{
	uint64_t bits = 0;
	if (value->type == GGUF_STRING || value->type == GGUF_ARRAY ||
	    value->type == GGUF_FLOAT32 || value->type == GGUF_FLOAT64)
		return false;
	memcpy(&bits, value->data.data, value->data.bytes);
	switch (value->type) {
	case GGUF_INT8:
		*ret = (int8_t)bits;
		return true;
	case GGUF_INT16:
		*ret = (int16_t)bits;
		return true;
	case GGUF_INT32:
		*ret = (int32_t)bits;
		return true;
	default:
		*ret = (int64_t)bits;
		return *ret >= 0 || value->type == GGUF_INT64;
	}
}

/* @key starts with a dot: it is the architecture's ("llama" + ".block_count"). */
static const struct gguf_value *find_arch(const struct gguf *g, const char *key)
{
	char name[128];
	snprintf(name, sizeof(name), "%s%s", key[0] == '.' ? g->arch : "", key);
	return find(g, name);
}

/* @initial below zero: the key is required. */
static int get_count(struct gguf *g, const char *key, int64_t initial, uint32_t *ret)
{
	const struct gguf_value *value = find_arch(g, key);
	int64_t number = initial;
	if (!value && initial < 0)
		return model__fail(g->model, "%s%s is missing", key[0] == '.' ? g->arch : "", key);
	if (value && (!read_integer(value, &number) || number < 0 || number > UINT32_MAX))
		return model__fail(g->model, "%s%s is not a 32-bit count",
				   key[0] == '.' ? g->arch : "", key);
	*ret = (uint32_t)number;
	return 0;
}

static int get_real(struct gguf *g, const char *key, double initial, double *ret)
{
	const struct gguf_value *value = find_arch(g, key);
	*ret = initial;
	if (!value)
		return 0;
	float single;
	if (value->type == GGUF_FLOAT32) {
		memcpy(&single, value->data.data, sizeof(single));
		*ret = (double)single;
	} else if (value->type == GGUF_FLOAT64) {
		memcpy(ret, value->data.data, sizeof(*ret));
	} else {
		return model__fail(g->model, "%s%s is not a real number",
				   key[0] == '.' ? g->arch : "", key);
	}
	return 0;
}

static int get_bool(struct gguf *g, const char *key, bool initial, bool *ret)
{
	const struct gguf_value *value = find_arch(g, key);
	*ret = initial;
	if (!value)
		return 0;
	if (value->type != GGUF_BOOL)
		return model__fail(g->model, "%s is not a truth value", key);
	*ret = value->data.data[0] != 0;
	return 0;
}

/* An absent text is empty. */
static int get_text(struct gguf *g, const char *key, struct text *ret)
{
	const struct gguf_value *value = find_arch(g, key);
	*ret = (struct text){ "", 0 };
	if (!value)
		return 0;
	if (value->type != GGUF_STRING)
		return model__fail(g->model, "%s is not a text", key);
	*ret = value->data;
	return 0;
}

static int get_id(struct gguf *g, const char *key, int32_t *ret)
{
	const struct gguf_value *value = find(g, key);
	int64_t number = -1;
	if (value && !read_integer(value, &number))
		return model__fail(g->model, "%s is not a token id", key);
	*ret = number >= 0 && number <= INT32_MAX ? (int32_t)number : -1;
	return 0;
}

/* @element: type wanted; absent arrays give count 0. */
static int get_array(struct gguf *g, const char *key, enum gguf_type element, uint64_t count_max,
		     const struct gguf_value **ret)
{
	const struct gguf_value *value = find(g, key);
	*ret = value;
	if (!value)
		return 0;
	if (value->type != GGUF_ARRAY || value->element != element)
		return model__fail(g->model, "%s is not an array of the expected type", key);
	if (value->count > count_max)
		return model__fail(g->model, "%s has %llu elements, more than %llu", key,
				   (unsigned long long)value->count, (unsigned long long)count_max);
	return 0;
}

/* The lengths were checked when the array was read. */
static struct text next_text(const char **cursor)
{
	uint64_t bytes = 0;
	memcpy(&bytes, *cursor, sizeof(bytes));
	struct text text = { *cursor + sizeof(bytes), bytes };
	*cursor = text.data + text.bytes;
	return text;
}

static int load_rope(struct gguf *g)
{
	struct model_config *c = &g->model->config;
	struct text type;
	double base, factor;
	int error;
	if ((error = get_count(g, ".rope.dimension_count", c->head_dim, &c->rope_dim)) < 0 ||
	    (error = get_real(g, ".rope.freq_base", 10000, &base)) < 0 ||
	    (error = get_text(g, ".rope.scaling.type", &type)) < 0)
		return error;
	c->rope_base = (float)base;
	c->rope_interleaved = c->arch == MODEL_LLAMA;
	if (type.bytes && !text_is(type, "none") && !text_is(type, "linear"))
		return model__fail(g->model,
				   "rope scaling of type %.*s is not supported (none, linear, "
				   "rope_freqs.weight are)",
				   (int)MIN(type.bytes, (size_t)40), type.data);
	/* The older form of the same has no type. */
	if ((error = get_real(g, ".rope.scale_linear", 1, &factor)) < 0 ||
	    (error = get_real(g, ".rope.scaling.factor", factor, &factor)) < 0)
		return error;
	return text_is(type, "none") ? 0 : model__rope_linear(g->model, factor);
}

static int load_arch(struct gguf *g)
{
	static const char *const names[] = {
		[MODEL_LLAMA] = "llama", [MODEL_QWEN2] = "qwen2", [MODEL_QWEN3] = "qwen3",
	};
	struct text name;
	int error = get_text(g, "general.architecture", &name);
	if (error < 0)
		return error;
	for (size_t i = 0; i < ARRAY_COUNT(names); i++) {
		if (text_is(name, names[i])) {
			g->model->config.arch = (enum model_arch)i;
			snprintf(g->arch, sizeof(g->arch), "%s", names[i]);
			return 0;
		}
	}
	return model__fail(g->model,
			   "general.architecture is \"%.*s\"; llama, qwen2 and qwen3 are supported",
			   (int)MIN(name.bytes, (size_t)40), name.data);
}

static int load_config(struct gguf *g)
{
	struct model_config *c = &g->model->config;
	uint32_t value_length, experts, window;
	double epsilon;
	int error = load_arch(g);
	if (error < 0 || (error = get_count(g, ".block_count", -1, &c->layer_count)) < 0 ||
	    (error = get_count(g, ".embedding_length", -1, &c->embedding)) < 0 ||
	    (error = get_count(g, ".attention.head_count", -1, &c->head_count)) < 0 ||
	    (error = get_count(g, ".attention.head_count_kv", c->head_count,
			       &c->kv_head_count)) < 0 ||
	    (error = get_count(g, ".feed_forward_length", -1, &c->feed_forward)) < 0 ||
	    (error = get_count(g, ".context_length", -1, &c->context_tokens)) < 0 ||
	    (error = get_count(g, ".expert_count", 0, &experts)) < 0 ||
	    (error = get_count(g, ".attention.sliding_window", 0, &window)) < 0 ||
	    (error = get_real(g, ".attention.layer_norm_rms_epsilon", 1e-5, &epsilon)) < 0)
		return error;
	c->norm_epsilon = (float)epsilon;
	if (experts)
		return model__fail(g->model, "mixtures of experts are not supported");
	/* Attention is full, which is the same as long as the context fits the window. */
	if (window && window < c->context_tokens)
		c->context_tokens = window;
	uint32_t head_dim = c->head_count ? c->embedding / c->head_count : 0;
	if ((error = get_count(g, ".attention.key_length", head_dim, &c->head_dim)) < 0 ||
	    (error = get_count(g, ".attention.value_length", c->head_dim, &value_length)) < 0)
		return error;
	if (value_length != c->head_dim)
		return model__fail(g->model, "heads with keys of %u and values of %u are not supported",
				   c->head_dim, value_length);
	return load_rope(g);
}

static int load_merges(struct gguf *g)
{
	struct vocab *v = &g->model->vocab;
	const struct gguf_value *merges;
	int error = get_array(g, "tokenizer.ggml.merges", GGUF_STRING, 1u << 24, &merges);
	if (error < 0)
		return error;
	if (!merges)
		return model__fail(g->model, "tokenizer.ggml.merges is missing");
	v->merges = model__alloc(g->model, merges->count, sizeof(v->merges[0]));
	if (!v->merges)
		return -ENOMEM;
	const char *cursor = merges->data.data;
	for (uint64_t i = 0; i < merges->count; i++) {
		struct text text = next_text(&cursor);
		/* Byte-level pieces hold no space, so the first one parts them. */
		const char *space = text.bytes > 1 ? memchr(text.data + 1, ' ', text.bytes - 1) : NULL;
		if (!space)
			return model__fail(g->model, "merge %llu is not two pieces and a space",
					   (unsigned long long)i);
		size_t left = (size_t)(space - text.data);
		v->merges[i].left = (struct text){ text.data, left };
		v->merges[i].right = (struct text){ space + 1, text.bytes - left - 1 };
	}
	v->merge_count = (uint32_t)merges->count;
	return 0;
}

static int load_scores(struct gguf *g)
{
	struct vocab *v = &g->model->vocab;
	const struct gguf_value *scores;
	int error = get_array(g, "tokenizer.ggml.scores", GGUF_FLOAT32, v->token_count, &scores);
	if (error < 0)
		return error;
	if (!scores || scores->count != v->token_count)
		return model__fail(g->model, "tokenizer.ggml.scores has not one score a token");
	v->scores = model__alloc(g->model, v->token_count, sizeof(v->scores[0]));
	if (!v->scores)
		return -ENOMEM;
	if (v->token_count)
		memcpy(v->scores, scores->data.data, v->token_count * sizeof(v->scores[0]));
	return 0;
}

static int load_tokens(struct gguf *g)
{
	struct vocab *v = &g->model->vocab;
	const struct gguf_value *tokens, *types;
	int error;
	if ((error = get_array(g, "tokenizer.ggml.tokens", GGUF_STRING, 1u << 22, &tokens)) < 0)
		return error;
	if (!tokens)
		return model__fail(g->model, "tokenizer.ggml.tokens is missing");
	v->token_count = (uint32_t)tokens->count;
	v->tokens = model__alloc(g->model, v->token_count, sizeof(v->tokens[0]));
	v->types = model__alloc(g->model, v->token_count, sizeof(v->types[0]));
	if (!v->tokens || !v->types)
		return -ENOMEM;
	const char *cursor = tokens->data.data;
	for (uint32_t i = 0; i < v->token_count; i++)
		v->tokens[i] = next_text(&cursor);
	if ((error = get_array(g, "tokenizer.ggml.token_type", GGUF_INT32, v->token_count, &types)) <
	    0)
		return error;
	if (types && types->count != v->token_count)
		return model__fail(g->model, "tokenizer.ggml.token_type has not one type a token");
	for (uint32_t i = 0; i < v->token_count; i++) {
		int32_t type = VOCAB_NORMAL;
		if (types)
			memcpy(&type, types->data.data + 4 * (size_t)i, sizeof(type));
		if (type < 0 || type >= VOCAB_TYPE_COUNT)
			return model__fail(g->model, "token %u has the type %d; GGUF knows 0..6", i,
					   type);
		v->types[i] = (uint8_t)type;
	}
	return 0;
}

static int load_specials(struct gguf *g)
{
	static const char *const ends[] = {
		"tokenizer.ggml.eos_token_id",
		"tokenizer.ggml.eot_token_id",
		"tokenizer.ggml.eom_token_id",
	};
	struct model_config *c = &g->model->config;
	struct vocab *v = &g->model->vocab;
	int error;
	if ((error = get_id(g, "tokenizer.ggml.bos_token_id", &c->bos_id)) < 0 ||
	    (error = get_id(g, "tokenizer.ggml.unknown_token_id", &v->unknown_id)) < 0)
		return error;
	for (size_t i = 0; i < ARRAY_COUNT(ends); i++) {
		int32_t id;
		if ((error = get_id(g, ends[i], &id)) < 0)
			return error;
		model__add_eos(g->model, id);
	}
	/* Absent flags mean what the tokenizer does by default. */
	bool spm = v->kind == VOCAB_SPM;
	bool add_bos = spm || v->default_add_bos;
	if ((error = get_bool(g, "tokenizer.ggml.add_bos_token", add_bos, &c->add_bos)) < 0 ||
	    (error = get_bool(g, "tokenizer.ggml.add_eos_token", false, &c->add_eos)) < 0)
		return error;
	bool prefix;
	if ((error = get_bool(g, "tokenizer.ggml.add_space_prefix", spm, &prefix)) < 0)
		return error;
	v->space_prefix = spm && prefix ? SPACE_PREFIX_ALWAYS : SPACE_PREFIX_NONE;
	return 0;
}

static int load_vocab(struct gguf *g)
{
	struct vocab *v = &g->model->vocab;
	struct text kind, pre;
	int error;
	v->unknown_id = -1;
	g->model->config.bos_id = -1;
	if ((error = get_text(g, "tokenizer.ggml.model", &kind)) < 0 ||
	    (error = get_text(g, "tokenizer.ggml.pre", &pre)) < 0)
		return error;
	if (text_is(kind, "gpt2"))
		v->kind = VOCAB_BPE;
	else if (text_is(kind, "llama"))
		v->kind = VOCAB_SPM;
	else
		return model__fail(g->model,
				   "tokenizer.ggml.model is \"%.*s\"; gpt2 and llama are supported",
				   (int)MIN(kind.bytes, (size_t)40), kind.data);
	if ((error = load_tokens(g)) < 0)
		return error;
	if ((error = v->kind == VOCAB_BPE ? load_merges(g) : load_scores(g)) < 0)
		return error;
	if (v->kind == VOCAB_BPE && vocab__set_pre(v, pre) < 0)
		return model__fail(g->model, "the pre-tokenizer \"%.*s\" is not supported",
				   (int)MIN(pre.bytes, (size_t)40), pre.data);
	return load_specials(g);
}

/* One row of the tensor table; @data_at is the offset of the data section, known afterwards. */
static int read_tensor(struct gguf *g, struct tensor *tensor, uint64_t *ret_offset)
{
	struct text name;
	uint32_t dimension_count = 0, type = 0;
	uint64_t dimensions[2] = { 1, 1 };
	int error;
	if ((error = read_text(g, &name)) < 0 ||
	    (error = read_bytes(g, &dimension_count, sizeof(dimension_count))) < 0)
		return error;
	if (name.bytes == 0 || name.bytes > GGUF_NAME_BYTES_MAX || memchr(name.data, 0, name.bytes))
		return model__fail(g->model, "a tensor's name has %zu bytes or holds a NUL",
				   name.bytes);
	tensor->name = model__copy(g->model, name);
	if (!tensor->name)
		return -ENOMEM;
	if (dimension_count < 1 || dimension_count > 2)
		return model__fail(g->model, "tensor %s has %u dimensions; 1 and 2 are supported",
				   tensor->name, dimension_count);
	if ((error = read_bytes(g, dimensions, 8 * (size_t)dimension_count)) < 0 ||
	    (error = read_bytes(g, &type, sizeof(type))) < 0 ||
	    (error = read_bytes(g, ret_offset, sizeof(*ret_offset))) < 0)
		return error;
	if (dimensions[0] < 1 || dimensions[0] > UINT32_MAX || dimensions[1] < 1 ||
	    dimensions[1] > UINT32_MAX)
		return model__fail(g->model, "tensor %s has %llu x %llu elements", tensor->name,
				   (unsigned long long)dimensions[0],
				   (unsigned long long)dimensions[1]);
	tensor->type = (enum tensor_type)type;
	tensor->column_count = (uint32_t)dimensions[0];
	tensor->row_count = (uint32_t)dimensions[1];
	if (strcmp(tensor_type_name(tensor->type), "unknown") == 0)
		return model__fail(g->model, "tensor %s has the type %u, which is not supported",
				   tensor->name, type);
	size_t row_bytes = tensor_row_bytes(tensor->type, tensor->column_count);
	if (!row_bytes)
		return model__fail(g->model, "tensor %s has rows of %u, not whole blocks of %s",
				   tensor->name, tensor->column_count,
				   tensor_type_name(tensor->type));
	if (__builtin_mul_overflow(row_bytes, (size_t)tensor->row_count, &tensor->bytes))
		return model__fail(g->model, "tensor %s is too large", tensor->name);
	return 0;
}

static int load_tensors(struct gguf *g, uint64_t count)
{
	struct model *model = g->model;
	uint32_t alignment;
	int error = get_count(g, "general.alignment", GGUF_ALIGNMENT_DEFAULT, &alignment);
	if (error < 0)
		return error;
	if (alignment < 8 || alignment > (1u << 20) || (alignment & (alignment - 1)))
		return model__fail(model, "general.alignment is %u, not a power of two from 8",
				   alignment);
	model->tensors = model__alloc(model, count, sizeof(model->tensors[0]));
	uint64_t *offsets = calloc(count + 1, sizeof(*offsets));
	if (!model->tensors || !offsets) {
		free(offsets);
		return -ENOMEM;
	}
	for (uint64_t i = 0; i < count && error >= 0; i++)
		error = read_tensor(g, &model->tensors[i], &offsets[i]);
	uint64_t data_at = ALIGN_UP((uint64_t)(g->at - g->start), (uint64_t)alignment);
	uint64_t file_bytes = (uint64_t)(g->end - g->start);
	for (uint64_t i = 0; i < count && error >= 0; i++) {
		struct tensor *tensor = &model->tensors[i];
		if (offsets[i] % alignment != 0)
			error = model__fail(model, "tensor %s lies at offset %llu, not aligned to %u",
					    tensor->name, (unsigned long long)offsets[i], alignment);
		else if (data_at > file_bytes || offsets[i] > file_bytes - data_at ||
			 tensor->bytes > file_bytes - data_at - offsets[i])
			error = model__fail(model, "tensor %s reaches beyond the end of the file",
					    tensor->name);
		else
			tensor->data = g->start + data_at + offsets[i];
	}
	free(offsets);
	if (error >= 0)
		model->tensor_count = (uint32_t)count;
	return error;
}

static int load_header(struct gguf *g, uint64_t *ret_tensor_count)
{
	struct {
		char magic[4];
		uint32_t version;
		uint64_t tensor_count, value_count;
	} header;
	static_assert(sizeof(header) == 24, "the header has no holes");
	if (gguf_left(g) < sizeof(header) || memcmp(g->at, "GGUF", 4) != 0)
		return model__fail(g->model, "this is not a GGUF file");
	(void)read_bytes(g, &header, sizeof(header));
	if (header.version < 2 || header.version > 3)
		return model__fail(g->model, "GGUF version %u is not supported (2 and 3 are)",
				   header.version);
	/* A key-value pair has at least 13 bytes, a row of the tensor table 32. */
	if (header.value_count > MIN((uint64_t)GGUF_KEYS_MAX, gguf_left(g) / 13) ||
	    header.tensor_count > MIN((uint64_t)GGUF_TENSORS_MAX, gguf_left(g) / 32))
		return model__fail(g->model,
				   "the header counts %llu keys and %llu tensors, more than fit",
				   (unsigned long long)header.value_count,
				   (unsigned long long)header.tensor_count);
	g->values = calloc(header.value_count + 1, sizeof(g->values[0]));
	if (!g->values)
		return -ENOMEM;
	for (uint64_t i = 0; i < header.value_count; i++) {
		int error = read_value(g, &g->values[i]);
		if (error < 0)
			return error;
		g->value_count++;
	}
	*ret_tensor_count = header.tensor_count;
	return 0;
}

static int load_names(struct gguf *g, const char *path)
{
	struct model *model = g->model;
	struct text chat_template;
	int error = get_text(g, "tokenizer.chat_template", &chat_template);
	if (error < 0)
		return error;
	/* The file's own name, not general.name: that one is prose, with spaces, and the same for
	 * every quantisation of a model. */
	const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
	struct text name = { base, strlen(base) };
	if (name.bytes > 5 && strcmp(base + name.bytes - 5, ".gguf") == 0)
		name.bytes -= 5;
	if (memchr(chat_template.data, 0, chat_template.bytes))
		return model__fail(model, "the chat template holds a NUL");
	model->config.name = model__copy(model, name);
	if (!model->config.name)
		return -ENOMEM;
	if (!chat_template.bytes)
		return 0;
	model->chat_template = model__copy(model, chat_template);
	return model->chat_template ? 0 : -ENOMEM;
}

int gguf__load(struct model *model, const char *path)
{
	struct model_map map;
	int error = model__map(model, path, &map);
	if (error < 0)
		return error;
	struct gguf g = { .model = model, .start = map.data, .at = map.data };
	g.end = g.start + map.bytes;
	uint64_t tensor_count = 0;
	if ((error = load_header(&g, &tensor_count)) < 0 || (error = load_config(&g)) < 0 ||
	    (error = load_vocab(&g)) < 0 || (error = load_names(&g, path)) < 0)
		goto out;
	/* model__check_tensors() says the true number; without weights the vocabulary does. */
	if ((error = get_count(&g, ".vocab_size", model->vocab.token_count,
			       &model->config.vocab_count)) < 0)
		goto out;
	if (!(model->flags & MODEL_NO_WEIGHTS))
		error = load_tensors(&g, tensor_count);
out:
	free(g.values);
	return error;
}
