/* Repacking a file's matrix into the tiles of kernels.h. */
#ifndef BATON_ENGINE_CPU_TILE_H
#define BATON_ENGINE_CPU_TILE_H

#include "engine/cpu/kernels.h"
#include "model/model.h"

/* Fills everything but @ret_matrix->data. Return: 0, or -ENOTSUP for a type without tiles. */
int tile_plan(const struct tensor *tensor, struct matrix *ret_matrix);
size_t tile_matrix_bytes(const struct matrix *matrix);
/* Repacks tiles [first, end) of @tensor into @data, planned as @matrix. Threads may share this. */
void tile_pack(const struct tensor *tensor, const struct matrix *matrix, uint32_t first, uint32_t end,
	       uint8_t *data);

#endif
