/* The parts of the Hugging Face loader. */
#ifndef BATON_MODEL_HF_H
#define BATON_MODEL_HF_H

#include <jansson.h>
#include <limits.h>

#include "model/private.h"

int hf__path(struct model *model, const char *folder, const char *name, char path[PATH_MAX]);
/* An object, which the caller decrefs; NULL when the file is absent and not @required. */
int hf__read_json(struct model *model, const char *folder, const char *name, bool required,
		  json_t **ret);
/* tokenizer.json into the vocabulary. @settings: tokenizer_config.json or NULL. */
int hf__load_tokenizer(struct model *model, const char *folder, const json_t *settings);
/* pre_tokenizer and normalizer of tokenizer.json. */
int hf__load_pre(struct model *model, const json_t *tokenizer);
/* Every *.safetensors that the index names, or all of the folder. */
int hf__load_tensors(struct model *model, const char *folder);

#endif
