/* A blocking HTTP client for the tests of the API. */
#ifndef BATON_CONDUCTOR_TEST_CLIENT_H
#define BATON_CONDUCTOR_TEST_CLIENT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct answer {
	int status;
	char *text;	  /* the whole of it */
	const char *body; /* de-chunked */
	json_t *json;	  /* or NULL */
};

int client_dial(uint16_t port);
/* @extra: header lines; @body: NULL for none. */
void client_send(int fd, const char *method, const char *path, const char *extra, const char *body);
/* Reads to the end of the connection, and closes. */
struct answer client_receive(int fd);
void answer_free(struct answer *answer);

/* "choices.0.text" */
json_t *at(json_t *value, const char *path);
const char *text_at(json_t *value, const char *path);
/* The events of a stream. @ret_done: it ended with [DONE]. */
json_t *client_events(const struct answer *answer, bool *ret_done);
/* Text of choice @index over all events; the caller frees. */
char *client_streamed(json_t *list, bool chat, int index, const char **ret_finish);

#endif
