/* The engine of a simulated node; see engine.c. */
#ifndef BATON_SIM_ENGINE_H
#define BATON_SIM_ENGINE_H

struct sim_node;

void sim_engine_copies(struct sim_node *node);
void sim_engine_layer(struct sim_node *node, uint32_t layer);
void sim_engine_sample(struct sim_node *node);

#endif
