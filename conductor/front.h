/*
 * The fronts: N threads, each with a loop of its own, that speak HTTP to clients, tokenise, and
 * turn tokens back into text. They share one port (SO_REUSEPORT) and talk to the core thread only
 * through the bridge. Front 0 also holds the admin listener.
 */
#ifndef BATON_CONDUCTOR_FRONT_H
#define BATON_CONDUCTOR_FRONT_H

#include <stdbool.h>
#include <stdint.h>

#include "conductor/bridge.h"
#include "conductor/key_source.h"
#include "model/model.h"
#include "model/template.h"
#include "net/http.h"

#define FRONT_NAMES_MAX 8

struct front_model {
	const char *names[FRONT_NAMES_MAX]; /* as served; the first is what answers say */
	uint32_t name_count;
	const char *root; /* the path it was loaded from */
	const struct model *model;
	const struct chat_template *chat_template; /* NULL: no chat; template_error says why */
	const char *template_error;
	uint32_t max_model_len;
	uint64_t created_s;
	uint32_t piece_bytes_max; /* longest token; filled by fronts_start() */
};

struct fronts_config {
	const char *host, *admin_host;
	uint16_t port, admin_port; /* 0: any */
	uint32_t thread_count;
	const char *const *api_keys;
	uint32_t api_key_count;
	struct key_source *key_source; /* NULL: none. Neither this nor api_keys: no key is asked for */
	bool admin_keyed; /* the admin listener asks for a key of class admin */
	uint32_t requests_max;  /* --max-num-queued-reqs */
	struct http_limits limits;
	struct front_model *models;
	uint32_t model_count;
};

struct fronts;

/* Binds, then starts the threads. The bridge's rings are set up; its wake_front handles are
 * initialised here. @config is kept. Return: 0 or negative errno, with nothing left running. */
int fronts_start(const struct fronts_config *config, struct bridge *bridge,
		 struct fronts **ret_fronts, uint16_t *ret_port, uint16_t *ret_admin_port);
/* No new connections; requests under way go on. Any thread. */
void fronts_drain(struct fronts *fronts);
/* Client connections with an answer still under way. Any thread. */
uint32_t fronts_open(const struct fronts *fronts);
/* Ends every request with 503 and tells the core. Any thread. */
void fronts_abort(struct fronts *fronts);
/* Closes everything and joins the threads. Return: 0, or -EBUSY when a front leaked (logged). */
int fronts_stop(struct fronts *fronts);

#endif
