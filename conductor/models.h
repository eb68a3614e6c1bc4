/* The models that a conductor serves: config, tokenizer, template; no weights. */
#ifndef BATON_CONDUCTOR_MODELS_H
#define BATON_CONDUCTOR_MODELS_H

#include "conductor/config.h"
#include "conductor/front.h"
#include "conductor/shell.h"

#define MODELS_MAX BRIDGE_MODELS_MAX

struct models {
	struct config_list paths, names;
	struct model *opened[MODELS_MAX];
	struct chat_template *templates[MODELS_MAX];
	char *template_errors[MODELS_MAX];
	struct front_model front[MODELS_MAX];
	struct shell_model shell[MODELS_MAX];
	uint32_t count;
};

/* Return: 0, or negative after one line of error. models_close() is due in any case. */
int models_open(struct models *models, const struct config *config);
void models_close(struct models *models);

#endif
