#include "model/model.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"
#include "base/hash.h"
#include "model/private.h"
#include "model/tokenizer.h"

#define MEMORY_CHUNK_BYTES ((size_t)256 << 10)

bool text_is(struct text text, const char *value)
{
	return text.bytes == strlen(value) && memcmp(text.data, value, text.bytes) == 0;
}

void *model__alloc(struct model *model, size_t count, size_t bytes)
{
	return memory_alloc(&model->memory, count, bytes);
}

char *model__copy(struct model *model, struct text text)
{
	return memory_copy(&model->memory, text.data, text.bytes);
}

int model__fail(struct model *model, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	if (model->error_bytes)
		vsnprintf(model->error, model->error_bytes, format, args);
	va_end(args);
	return BATON_EFORMAT;
}

/* Keeps the map until model_close(). An empty file is no error here. */
int model__map(struct model *model, const char *path, struct model_map *ret_map)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		int error = -errno;
		(void)model__fail(model, "%s: %s", path, strerror(-error));
		return error;
	}
	struct stat stat;
	int error = 0;
	static char nothing[1];
	struct model_map map = { .data = nothing };
	struct model_map *maps =
		realloc(model->maps, (model->map_count + 1) * sizeof(model->maps[0]));
	if (!maps) {
		error = -ENOMEM;
		goto out;
	}
	model->maps = maps;
	if (fstat(fd, &stat) < 0) {
		error = -errno;
		goto out;
	}
	if (!S_ISREG(stat.st_mode)) {
		error = model__fail(model, "%s is not a regular file", path);
		goto out;
	}
	map.bytes = (size_t)stat.st_size;
	if (map.bytes) {
		map.data = mmap(NULL, map.bytes, PROT_READ, MAP_SHARED, fd, 0);
		if (map.data == MAP_FAILED) {
			error = -errno;
			goto out;
		}
		model->maps[model->map_count++] = map;
	}
	*ret_map = map;
out:
	if (error < 0 && error != BATON_EFORMAT)
		(void)model__fail(model, "%s: %s", path, strerror(-error));
	close(fd);
	return error;
}

static int open_path(struct model *model, const char *path)
{
	struct stat stat_;
	if (stat(path, &stat_) < 0) {
		int error = -errno;
		(void)model__fail(model, "%s: %s", path, strerror(-error));
		return error;
	}
	int error = S_ISDIR(stat_.st_mode) ? hf__load(model, path) : gguf__load(model, path);
	if (error < 0)
		return error;
	if ((error = model__check_config(model)) < 0)
		return error;
	if (!(model->flags & MODEL_NO_WEIGHTS) && (error = model__check_tensors(model)) < 0)
		return error;
	if (model->vocab.token_count > model->config.vocab_count)
		return model__fail(model,
				   "the tokenizer has %u tokens, the embedding matrix only %u rows",
				   model->vocab.token_count, model->config.vocab_count);
	model__find_eos(model);
	return tokenizer__new(model, &model->tokenizer);
}

int model_open(const char *path, int flags, struct model **ret_model, char *ret_error,
	       size_t error_bytes)
{
	struct model *model = calloc(1, sizeof(*model));
	if (!model)
		return -ENOMEM;
	memory_init(&model->memory, MEMORY_CHUNK_BYTES, 0);
	model->flags = flags;
	model->error = ret_error;
	model->error_bytes = error_bytes;
	if (error_bytes)
		ret_error[0] = 0;
	int error = open_path(model, path);
	if (error < 0) {
		if (error_bytes && !ret_error[0])
			(void)model__fail(model, "%s: %s", path, err_text(error));
		model_close(model);
		return error;
	}
	model->error = NULL;
	model->error_bytes = 0;
	*ret_model = model;
	return 0;
}

void model_close(struct model *model)
{
	if (!model)
		return;
	tokenizer__free(model->tokenizer);
	for (uint32_t i = 0; i < model->map_count; i++)
		munmap(model->maps[i].data, model->maps[i].bytes);
	free(model->maps);
	memory_fini(&model->memory);
	free(model);
}

const struct model_config *model_config(const struct model *model)
{
	return &model->config;
}

const char *model_chat_template(const struct model *model)
{
	return model->chat_template;
}

const struct tokenizer *model_tokenizer(const struct model *model)
{
	return model->tokenizer;
}

static int compare_name(const void *name, const void *tensor)
{
	return strcmp(name, ((const struct tensor *)tensor)->name);
}

const struct tensor *model_tensor(const struct model *model, const char *name)
{
	if (!model->tensor_count)
		return NULL;
	return bsearch(name, model->tensors, model->tensor_count, sizeof(model->tensors[0]),
		       compare_name);
}
