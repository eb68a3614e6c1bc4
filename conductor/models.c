#include "conductor/models.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"

#define TEMPLATE_BYTES_MAX (1u << 20)

/* The one template that so many models share that it has a name. */
static const char chatml[] =
	"{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
	"message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
	"{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

static char *read_file(const char *path)
{
	FILE *file = fopen(path, "re");
	if (!file)
		return NULL;
	char *text = calloc(1, TEMPLATE_BYTES_MAX + 1);
	if (text && fread(text, 1, TEMPLATE_BYTES_MAX, file) == 0) {
		free(text);
		text = NULL;
	}
	fclose(file);
	return text;
}

/* A template that cannot be used turns chat off, with the reason in every refusal; completions
 * go on. One that was asked for by --chat-template must work. */
static int template_open(struct models *models, uint32_t index, const char *wish)
{
	struct front_model *front = &models->front[index];
	const char *source = model_chat_template(front->model);
	char why[256] = "", *file = NULL;
	int result = -EINVAL;
	if (*wish) {
		file = strcmp(wish, "chatml") ? read_file(wish) : strdup(chatml);
		source = file;
		if (!source)
			snprintf(why, sizeof why, "cannot be read");
	} else if (!source) {
		snprintf(why, sizeof why, "the model has none");
	}
	if (source)
		result = chat_template_compile(source, &models->templates[index], why, sizeof why);
	free(file);
	if (!result) {
		front->chat_template = models->templates[index];
		return 0;
	}
	if (*wish) {
		log_error("chat template %s: %s", wish, why);
		return -EINVAL;
	}
	if (asprintf(&models->template_errors[index],
		     "Chat is not available: no usable chat template (%s). Start the conductor with "
		     "--chat-template NAME.",
		     why) < 0)
		return -ENOMEM;
	front->template_error = models->template_errors[index];
	log_warning("model %s: %s", front->names[0], front->template_error);
	return 0;
}

static void take_names(struct models *models, uint32_t index)
{
	struct front_model *front = &models->front[index];
	if (models->paths.count == 1) {
		for (uint32_t i = 0; i < models->names.count && i < FRONT_NAMES_MAX; i++)
			front->names[front->name_count++] = models->names.items[i];
	} else if (index < models->names.count) {
		front->names[front->name_count++] = models->names.items[index];
	}
	if (!front->name_count)
		front->names[front->name_count++] = model_config(front->model)->name;
}

static int model_add(struct models *models, const struct config *config, const char *path)
{
	uint32_t index = models->count;
	struct front_model *front = &models->front[index];
	struct shell_model *shell = &models->shell[index];
	char why[512] = "";
	int result = model_open(path, MODEL_NO_WEIGHTS, &models->opened[index], why, sizeof why);
	if (result) {
		log_error("model %s: %s", path, *why ? why : err_text(result));
		return result;
	}
	models->count++;
	front->model = models->opened[index];
	front->root = path;
	front->created_s = clock_wall_us() / 1000000;
	take_names(models, index);
	uint32_t context = model_config(front->model)->context_tokens;
	if (config->max_model_len > context) {
		log_error("--max-model-len %llu is more than the %u tokens of model %s",
			  (unsigned long long)config->max_model_len, context, front->names[0]);
		return -EINVAL;
	}
	front->max_model_len = config->max_model_len ? (uint32_t)config->max_model_len : context;
	*shell = (struct shell_model){
		.name = front->names[0],
		.model = front->model,
		.block_tokens = (uint32_t)config->block_tokens,
		.max_model_len = front->max_model_len,
	};
	return template_open(models, index, config->chat_template);
}

int models_open(struct models *models, const struct config *config)
{
	memset(models, 0, sizeof *models);
	if (config_list_init(&models->paths, config->models) ||
	    config_list_init(&models->names, config->served_model_names))
		return -ENOMEM;
	if (models->paths.count > MODELS_MAX) {
		log_error("more than %d models", MODELS_MAX);
		return -EINVAL;
	}
	for (uint32_t i = 0; i < models->paths.count; i++) {
		int result = model_add(models, config, models->paths.items[i]);
		if (result)
			return result;
	}
	for (uint32_t i = 0; i < models->count; i++)
		for (uint32_t j = 0; j < i; j++)
			if (!strcmp(models->front[i].names[0], models->front[j].names[0])) {
				log_error("two models are named %s: give each its own "
					  "--served-model-name",
					  models->front[i].names[0]);
				return -EINVAL;
			}
	return 0;
}

void models_close(struct models *models)
{
	for (uint32_t i = 0; i < models->count; i++) {
		chat_template_free(models->templates[i]);
		free(models->template_errors[i]);
		model_close(models->opened[i]);
	}
	config_list_fini(&models->paths);
	config_list_fini(&models->names);
}
