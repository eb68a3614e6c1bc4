/*
 * Hugging Face folders: config.json, generation_config.json, tokenizer.json,
 * tokenizer_config.json, chat_template.jinja, *.safetensors. Tensors get GGUF's names. Rows of q
 * and k are not permuted here, so rope pairs the halves for every architecture.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "model/hf.h"
#include "model/utf8.h"

int hf__path(struct model *model, const char *folder, const char *name, char path[PATH_MAX])
{
	if ((size_t)snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX)
		return 0;
	(void)model__fail(model, "the path %s is too long", folder);
	return -ENAMETOOLONG;
}

int hf__read_json(struct model *model, const char *folder, const char *name, bool required,
		  json_t **ret)
{
	char path[PATH_MAX];
	struct model_map map;
	json_error_t where;
	int error = hf__path(model, folder, name, path);
	*ret = NULL;
	if (error < 0)
		return error;
	if (!required && access(path, F_OK) < 0)
		return 0;
	if ((error = model__map(model, path, &map)) < 0)
		return error;
	*ret = json_loadb(map.bytes ? map.data : "", map.bytes, JSON_ALLOW_NUL, &where);
	if (!*ret)
		return model__fail(model, "%s, line %d: %s", name, where.line, where.text);
	if (!json_is_object(*ret)) {
		json_decref(*ret);
		*ret = NULL;
		return model__fail(model, "%s is not an object", name);
	}
	return 0;
}

static const json_t *get(const json_t *object, const char *key)
{
	const json_t *value = json_object_get(object, key);
	return json_is_null(value) ? NULL : value;
}

static const char *get_text(const json_t *object, const char *key)
{
	const char *text = json_string_value(get(object, key));
	return text ? text : "";
}

/* @initial below zero: the key is required. */
static int get_count(struct model *model, const json_t *config, const char *key, int64_t initial,
		     uint32_t *ret)
{
	const json_t *value = get(config, key);
	if (!value && initial < 0)
		return model__fail(model, "config.json has no %s", key);
	int64_t number = value ? json_integer_value(value) : initial;
	if ((value && !json_is_integer(value)) || number < 0 || number > UINT32_MAX)
		return model__fail(model, "config.json: %s is not a 32-bit count", key);
	*ret = (uint32_t)number;
	return 0;
}

static int get_real(struct model *model, const json_t *config, const char *key, double initial,
		    double *ret)
{
	const json_t *value = get(config, key);
	*ret = value ? json_number_value(value) : initial;
	if (value && !json_is_number(value))
		return model__fail(model, "config.json: %s is not a number", key);
	return 0;
}

static int load_rope_scaling(struct model *model, const json_t *scaling)
{
	const char *type = get_text(scaling, "rope_type");
	double factor, low, high, original;
	int error;
	if (!type[0])
		type = get_text(scaling, "type");
	if (!type[0] || strcmp(type, "default") == 0)
		return 0;
	if ((error = get_real(model, scaling, "factor", 0, &factor)) < 0)
		return error;
	if (strcmp(type, "linear") == 0)
		return model__rope_linear(model, factor);
	if (strcmp(type, "llama3") != 0)
		return model__fail(model,
				   "rope scaling of type %s is not supported (linear, llama3 are)",
				   type);
	if ((error = get_real(model, scaling, "low_freq_factor", 0, &low)) < 0 ||
	    (error = get_real(model, scaling, "high_freq_factor", 0, &high)) < 0 ||
	    (error = get_real(model, scaling, "original_max_position_embeddings", 0, &original)) < 0)
		return error;
	return model__rope_llama3(model, factor, low, high, original);
}

static int load_rope(struct model *model, const json_t *config)
{
	struct model_config *c = &model->config;
	/* Newer files keep all of it under rope_parameters. */
	const json_t *scaling = get(config, "rope_parameters");
	double base, part;
	int error;
	if (!scaling)
		scaling = get(config, "rope_scaling");
	if (scaling && !json_is_object(scaling))
		return model__fail(model, "config.json: rope_scaling is not an object");
	const json_t *holder = get(scaling, "rope_theta") ? scaling : config;
	if ((error = get_real(model, holder, "rope_theta", 10000, &base)) < 0 ||
	    (error = get_real(model, config, "partial_rotary_factor", 1, &part)) < 0)
		return error;
	if (!(part > 0 && part <= 1))
		return model__fail(model, "config.json: partial_rotary_factor is not in (0, 1]");
	c->rope_base = (float)base;
	c->rope_dim = (uint32_t)(c->head_dim * part);
	c->rope_interleaved = false;
	return scaling ? load_rope_scaling(model, scaling) : 0;
}

static int load_arch(struct model *model, const json_t *config)
{
	static const struct {
		const char *type;
		enum model_arch arch;
	} archs[] = {
		{ "llama", MODEL_LLAMA },
		{ "mistral", MODEL_LLAMA },
		{ "qwen2", MODEL_QWEN2 },
		{ "qwen3", MODEL_QWEN3 },
	};
	const char *type = get_text(config, "model_type");
	for (size_t i = 0; i < ARRAY_COUNT(archs); i++) {
		if (strcmp(type, archs[i].type) == 0) {
			model->config.arch = archs[i].arch;
			return 0;
		}
	}
	return model__fail(model,
			   "config.json: model_type is \"%.40s\"; llama, mistral, qwen2 and qwen3 "
			   "are supported",
			   type);
}

static int load_shape(struct model *model, const json_t *config)
{
	struct model_config *c = &model->config;
	double epsilon;
	int error;
	if ((error = get_count(model, config, "num_hidden_layers", -1, &c->layer_count)) < 0 ||
	    (error = get_count(model, config, "hidden_size", -1, &c->embedding)) < 0 ||
	    (error = get_count(model, config, "num_attention_heads", -1, &c->head_count)) < 0 ||
	    (error = get_count(model, config, "num_key_value_heads", c->head_count,
			       &c->kv_head_count)) < 0 ||
	    (error = get_count(model, config, "intermediate_size", -1, &c->feed_forward)) < 0 ||
	    (error = get_count(model, config, "vocab_size", -1, &c->vocab_count)) < 0 ||
	    (error = get_count(model, config, "max_position_embeddings", -1,
			       &c->context_tokens)) < 0 ||
	    (error = get_real(model, config, "rms_norm_eps", 1e-6, &epsilon)) < 0)
		return error;
	c->norm_epsilon = (float)epsilon;
	uint32_t head_dim = c->head_count ? c->embedding / c->head_count : 0;
	return get_count(model, config, "head_dim", head_dim, &c->head_dim);
}

static int load_config(struct model *model, const json_t *config)
{
	struct model_config *c = &model->config;
	uint32_t window;
	int error;
	if ((error = load_arch(model, config)) < 0 || (error = load_shape(model, config)) < 0 ||
	    (error = get_count(model, config, "sliding_window", 0, &window)) < 0)
		return error;
	const char *activation = get_text(config, "hidden_act");
	if (activation[0] && strcmp(activation, "silu") != 0)
		return model__fail(model, "config.json: hidden_act is \"%.40s\"; silu is supported",
				   activation);
	if (get(config, "quantization_config"))
		return model__fail(model, "quantised folders are not supported; GGUF files are");
	/* Attention is full, which is the same as long as the context fits the window. */
	const json_t *use = get(config, "use_sliding_window");
	bool windowed = window && (use ? json_is_true(use) : c->arch == MODEL_LLAMA);
	if (windowed && window < c->context_tokens)
		c->context_tokens = window;
	c->tied_embeddings = json_is_true(get(config, "tie_word_embeddings"));
	return load_rope(model, config);
}

/* One id or a list of them. */
static void add_eos(struct model *model, const json_t *value)
{
	size_t index;
	json_t *item;
	if (json_is_integer(value))
		model__add_eos(model, json_integer_value(value));
	json_array_foreach((json_t *)value, index, item)
	{
		if (json_is_integer(item))
			model__add_eos(model, json_integer_value(item));
	}
}

static int load_ends(struct model *model, const char *folder, const json_t *config)
{
	json_t *generation;
	int error = hf__read_json(model, folder, "generation_config.json", false, &generation);
	if (error < 0)
		return error;
	add_eos(model, get(generation, "eos_token_id"));
	add_eos(model, get(config, "eos_token_id"));
	const json_t *bos = get(config, "bos_token_id");
	if (!bos)
		bos = get(generation, "bos_token_id");
	if (model->config.bos_id < 0 && json_is_integer(bos) && json_integer_value(bos) >= 0 &&
	    json_integer_value(bos) <= INT32_MAX)
		model->config.bos_id = (int32_t)json_integer_value(bos);
	json_decref(generation);
	return 0;
}

static int set_template(struct model *model, const char *text, size_t bytes)
{
	if (!bytes)
		return 0;
	if (memchr(text, 0, bytes) || !utf8_valid(text, bytes))
		return model__fail(model, "the chat template is not a text");
	model->chat_template = model__copy(model, (struct text){ text, bytes });
	return model->chat_template ? 0 : -ENOMEM;
}

/* tokenizer_config.json has a template, or several by name; a file of its own comes first. */
static int load_template(struct model *model, const char *folder, const json_t *settings)
{
	char path[PATH_MAX];
	struct model_map map;
	size_t index;
	json_t *item;
	const json_t *value = get(settings, "chat_template"), *chosen = value;
	int error = hf__path(model, folder, "chat_template.jinja", path);
	if (error < 0)
		return error;
	if (access(path, F_OK) == 0) {
		error = model__map(model, path, &map);
		return error < 0 ? error : set_template(model, map.data, map.bytes);
	}
	json_array_foreach((json_t *)value, index, item)
	{
		if (index == 0 || strcmp(get_text(item, "name"), "default") == 0)
			chosen = get(item, "template");
	}
	if (!json_is_string(chosen))
		return 0;
	return set_template(model, json_string_value(chosen), json_string_length(chosen));
}

static int load_name(struct model *model, const char *folder)
{
	size_t end = strlen(folder);
	while (end > 1 && folder[end - 1] == '/')
		end--;
	size_t start = end;
	while (start > 0 && folder[start - 1] != '/')
		start--;
	model->config.name = model__copy(model, (struct text){ folder + start, end - start });
	return model->config.name ? 0 : -ENOMEM;
}

int hf__load(struct model *model, const char *folder)
{
	json_t *config = NULL, *settings = NULL;
	int error;
	model->config.bos_id = -1;
	if ((error = load_name(model, folder)) < 0 ||
	    (error = hf__read_json(model, folder, "config.json", true, &config)) < 0 ||
	    (error = load_config(model, config)) < 0 ||
	    (error = hf__read_json(model, folder, "tokenizer_config.json", false, &settings)) < 0 ||
	    (error = hf__load_tokenizer(model, folder, settings)) < 0 ||
	    (error = load_ends(model, folder, config)) < 0 ||
	    (error = load_template(model, folder, settings)) < 0)
		goto out;
	if (!(model->flags & MODEL_NO_WEIGHTS))
		error = hf__load_tensors(model, folder);
out:
	json_decref(config);
	json_decref(settings);
	return error;
}
