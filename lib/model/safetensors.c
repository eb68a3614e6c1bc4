/*
 * Safetensors: a little-endian u64 with the length of a JSON header, the header (name -> dtype,
 * shape, offsets), the data. A model is one file, or several that an index names.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "model/hf.h"

/* The format's own bound on the header. */
#define HEADER_BYTES_MAX 100000000
#define FILES_MAX 4096
#define INDEX_NAME "model.safetensors.index.json"

/* "layers.7.mlp.up_proj.weight" -> "blk.7.ffn_up.weight". */
static const struct {
	const char *from, *to;
} layer_names[] = {
	{ "input_layernorm", "attn_norm" },
	{ "post_attention_layernorm", "ffn_norm" },
	{ "self_attn.q_proj", "attn_q" },
	{ "self_attn.k_proj", "attn_k" },
	{ "self_attn.v_proj", "attn_v" },
	{ "self_attn.o_proj", "attn_output" },
	{ "self_attn.q_norm", "attn_q_norm" },
	{ "self_attn.k_norm", "attn_k_norm" },
	{ "mlp.gate_proj", "ffn_gate" },
	{ "mlp.up_proj", "ffn_up" },
	{ "mlp.down_proj", "ffn_down" },
};

/* GGUF's name into @ret; unknown ones keep theirs, and the common check refuses them by it. */
static void map_name(const char *name, char ret[256])
{
	static const char *const whole[][2] = {
		{ "model.embed_tokens.weight", "token_embd.weight" },
		{ "model.norm.weight", "output_norm.weight" },
		{ "lm_head.weight", "output.weight" },
	};
	snprintf(ret, 256, "%s", name);
	for (size_t i = 0; i < ARRAY_COUNT(whole); i++) {
		if (strcmp(name, whole[i][0]) == 0)
			snprintf(ret, 256, "%s", whole[i][1]);
	}
	unsigned layer;
	int end = 0;
	if (sscanf(name, "model.layers.%u.%n", &layer, &end) != 1 || !end)
		return;
	const char *part = name + end, *last = strrchr(part, '.');
	for (size_t i = 0; last && i < ARRAY_COUNT(layer_names); i++) {
		const char *from = layer_names[i].from;
		if (strlen(from) == (size_t)(last - part) &&
		    memcmp(part, from, (size_t)(last - part)) == 0)
			snprintf(ret, 256, "blk.%u.%s%s", layer, layer_names[i].to, last);
	}
}

/* Tensors that older exports carry although they follow from the config. */
static bool is_derived(const char *name)
{
	const char *last = strrchr(name, '.');
	return last && strcmp(last, ".inv_freq") == 0;
}

static int read_type(struct model *model, const char *name, const json_t *entry,
		     enum tensor_type *ret)
{
	const char *type = json_string_value(json_object_get(entry, "dtype"));
	if (type && strcmp(type, "F32") == 0)
		*ret = TENSOR_F32;
	else if (type && strcmp(type, "F16") == 0)
		*ret = TENSOR_F16;
	else if (type && strcmp(type, "BF16") == 0)
		*ret = TENSOR_BF16;
	else
		return model__fail(model, "tensor %.200s has the dtype %.20s; F32, F16 and BF16 are "
					  "supported",
				   name, type ? type : "(none)");
	return 0;
}

static int read_shape(struct model *model, const char *name, const json_t *entry,
		      struct tensor *tensor)
{
	const json_t *shape = json_object_get(entry, "shape");
	size_t count = json_array_size(shape);
	json_int_t sizes[2] = { 1, 1 };
	if (count < 1 || count > 2)
		return model__fail(model, "tensor %.200s has %zu dimensions; 1 and 2 are supported",
				   name, count);
	for (size_t i = 0; i < count; i++) {
		sizes[i] = json_integer_value(json_array_get(shape, i));
		if (sizes[i] < 1 || sizes[i] > UINT32_MAX)
			return model__fail(model, "tensor %.200s has an impossible shape", name);
	}
	/* The fastest dimension is the last here. */
	tensor->column_count = (uint32_t)sizes[count - 1];
	tensor->row_count = count == 2 ? (uint32_t)sizes[0] : 1;
	return 0;
}

/* Old exports do not align the data; such a tensor is copied. */
static int align(struct model *model, struct tensor *tensor)
{
	size_t element = tensor->type == TENSOR_F32 ? 4 : 2;
	if ((uintptr_t)tensor->data % element == 0)
		return 0;
	void *copy = model__alloc(model, tensor->bytes, 1);
	if (!copy)
		return -ENOMEM;
	memcpy(copy, tensor->data, tensor->bytes);
	tensor->data = copy;
	return 0;
}

static int read_tensor(struct model *model, const char *name, const json_t *entry,
		       const struct model_map *map, size_t data_at, struct tensor *tensor)
{
	const json_t *offsets = json_object_get(entry, "data_offsets");
	json_int_t start = json_integer_value(json_array_get(offsets, 0));
	json_int_t end = json_integer_value(json_array_get(offsets, 1));
	char mapped[256];
	int error;
	if ((error = read_type(model, name, entry, &tensor->type)) < 0 ||
	    (error = read_shape(model, name, entry, tensor)) < 0)
		return error;
	size_t row_bytes = tensor_row_bytes(tensor->type, tensor->column_count);
	if (__builtin_mul_overflow(row_bytes, (size_t)tensor->row_count, &tensor->bytes))
		return model__fail(model, "tensor %.200s is too large", name);
	if (json_array_size(offsets) != 2 || start < 0 || end < start ||
	    (size_t)end > map->bytes - data_at || (size_t)(end - start) != tensor->bytes)
		return model__fail(model,
				   "tensor %.200s has offsets beyond the file or unlike its shape",
				   name);
	map_name(name, mapped);
	tensor->name = model__copy(model, (struct text){ mapped, strlen(mapped) });
	if (!tensor->name)
		return -ENOMEM;
	tensor->data = (const char *)map->data + data_at + start;
	return align(model, tensor);
}

static int read_entries(struct model *model, const json_t *header, const struct model_map *map,
			size_t data_at)
{
	size_t count = json_object_size(header);
	struct tensor *tensors =
		model__alloc(model, model->tensor_count + count, sizeof(tensors[0]));
	if (!tensors)
		return -ENOMEM;
	if (model->tensor_count)
		memcpy(tensors, model->tensors, model->tensor_count * sizeof(tensors[0]));
	model->tensors = tensors;
	const char *name;
	json_t *entry;
	json_object_foreach((json_t *)header, name, entry)
	{
		if (strcmp(name, "__metadata__") == 0 || is_derived(name) ||
		    (model->config.tied_embeddings && strcmp(name, "lm_head.weight") == 0))
			continue;
		int error = read_tensor(model, name, entry, map, data_at,
					&tensors[model->tensor_count]);
		if (error < 0)
			return error;
		model->tensor_count++;
	}
	return 0;
}

static int load_file(struct model *model, const char *folder, const char *name)
{
	char path[PATH_MAX];
	struct model_map map;
	uint64_t header_bytes;
	json_error_t where;
	int error;
	if ((error = hf__path(model, folder, name, path)) < 0 ||
	    (error = model__map(model, path, &map)) < 0)
		return error;
	if (map.bytes < sizeof(header_bytes))
		return model__fail(model, "%s ends within its header", name);
	memcpy(&header_bytes, map.data, sizeof(header_bytes));
	if (header_bytes > HEADER_BYTES_MAX || header_bytes > map.bytes - sizeof(header_bytes))
		return model__fail(model, "%s ends within its header", name);
	json_t *header = json_loadb((const char *)map.data + sizeof(header_bytes), header_bytes,
				    JSON_REJECT_DUPLICATES, &where);
	if (!json_is_object(header)) {
		json_decref(header);
		return model__fail(model, "the header of %s is not a JSON object: %s", name,
				   where.text);
	}
	error = read_entries(model, header, &map, sizeof(header_bytes) + header_bytes);
	json_decref(header);
	return error;
}

static bool is_plain_name(const char *name)
{
	size_t bytes = strlen(name);
	return bytes > 12 && !strchr(name, '/') && strcmp(name + bytes - 12, ".safetensors") == 0;
}

static int load_index(struct model *model, const char *folder, const json_t *index)
{
	json_t *files = json_object();
	const char *name;
	json_t *file;
	int error = 0;
	json_object_foreach(json_object_get(index, "weight_map"), name, file)
	{
		const char *text = json_string_value(file);
		if (!text || !is_plain_name(text) || json_object_size(files) == FILES_MAX) {
			json_decref(files);
			return model__fail(model, "%s: weight_map names no .safetensors file for "
						  "%.200s",
					   INDEX_NAME, name);
		}
		(void)json_object_set_new(files, text, json_true());
	}
	json_object_foreach(files, name, file)
	{
		if ((error = load_file(model, folder, name)) < 0)
			break;
	}
	json_decref(files);
	return error;
}

static int is_safetensors(const struct dirent *entry)
{
	return is_plain_name(entry->d_name);
}

static int load_folder(struct model *model, const char *folder)
{
	struct dirent **entries;
	int count = scandir(folder, &entries, is_safetensors, alphasort);
	if (count < 0)
		return -errno;
	int error = count ? 0 : model__fail(model, "%s holds no .safetensors file", folder);
	for (int i = 0; i < count; i++) {
		if (error >= 0)
			error = load_file(model, folder, entries[i]->d_name);
		free(entries[i]);
	}
	free(entries);
	return error;
}

int hf__load_tensors(struct model *model, const char *folder)
{
	json_t *index;
	int error = hf__read_json(model, folder, INDEX_NAME, false, &index);
	if (error < 0)
		return error;
	error = index ? load_index(model, folder, index) : load_folder(model, folder);
	json_decref(index);
	if (error < 0 || model->config.tied_embeddings)
		return error;
	for (uint32_t i = 0; i < model->tensor_count; i++) {
		if (strcmp(model->tensors[i].name, "output.weight") == 0)
			return 0;
	}
	return model__fail(model, "tensor lm_head.weight is missing although "
				  "tie_word_embeddings is not true");
}
