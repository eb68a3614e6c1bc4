#include "conductor/test_client.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"

int client_dial(uint16_t port)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct timeval limit = { .tv_sec = 10 };
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
	return fd;
}

void client_send(int fd, const char *method, const char *path, const char *extra,
			 const char *body)
{
	struct buf out;
	buf_init(&out, 0);
	buf_printf(&out, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s", method, path,
		   extra ? extra : "");
	if (body)
		buf_printf(&out, "Content-Length: %zu\r\n\r\n%s", strlen(body), body);
	else
		buf_append_text(&out, "\r\n");
	for (size_t at = 0; at < out.bytes;) {
		ssize_t sent = send(fd, out.data + at, out.bytes - at, MSG_NOSIGNAL);
		if (sent <= 0)
			break;
		at += (size_t)sent;
	}
	buf_fini(&out);
}

static void dechunk(char *body)
{
	char *out = body, *in = body;
	for (;;) {
		unsigned long bytes = strtoul(in, &in, 16);
		if (strncmp(in, "\r\n", 2) != 0 || !bytes)
			break;
		memmove(out, in + 2, bytes);
		out += bytes;
		in += 2 + bytes + 2;
	}
	*out = 0;
}

struct answer client_receive(int fd)
{
	struct answer answer = { 0 };
	struct buf all;
	buf_init(&all, 0);
	for (;;) {
		char piece[65536];
		ssize_t bytes = recv(fd, piece, sizeof piece, 0);
		if (bytes <= 0)
			break;
		buf_append(&all, piece, (size_t)bytes);
	}
	close(fd);
	answer.text = buf_steal(&all);
	/* A probe for a half-closed client may stand in front. */
	char *head = answer.text;
	while (!strncmp(head, "HTTP/1.1 100", 12))
		head = strstr(head, "\r\n\r\n") + 4;
	assert_int_equal(strncmp(head, "HTTP/1.1 ", 9), 0);
	answer.status = atoi(head + 9);
	char *body = strstr(head, "\r\n\r\n");
	assert_non_null(body);
	bool chunked = memmem(head, (size_t)(body - head), "chunked", 7);
	body += 4;
	if (chunked)
		dechunk(body);
	answer.body = body;
	answer.json = json_loads(body, JSON_ALLOW_NUL, NULL);
	return answer;
}

void answer_free(struct answer *answer)
{
	json_decref(answer->json);
	free(answer->text);
}

json_t *at(json_t *value, const char *path)
{
	char copy[256], *save = NULL;
	snprintf(copy, sizeof copy, "%s", path);
	for (char *part = strtok_r(copy, ".", &save); part && value;
	     part = strtok_r(NULL, ".", &save))
		value = json_is_array(value) ? json_array_get(value, (size_t)atoi(part)) :
					       json_object_get(value, part);
	return value;
}

const char *text_at(json_t *value, const char *path)
{
	const char *text = json_string_value(at(value, path));
	return text ? text : "(none)";
}

json_t *client_events(const struct answer *answer, bool *ret_done)
{
	json_t *list = json_array();
	const char *p = answer->body;
	*ret_done = false;
	while (*p) {
		const char *end = strstr(p, "\n\n");
		assert_non_null(end);
		assert_int_equal(strncmp(p, "data: ", 6), 0);
		assert_false(*ret_done); /* nothing after [DONE] */
		if (!strncmp(p + 6, "[DONE]", 6)) {
			*ret_done = true;
		} else {
			json_t *event = json_loadb(p + 6, (size_t)(end - p - 6), JSON_ALLOW_NUL, NULL);
			assert_non_null(event);
			json_array_append_new(list, event);
		}
		p = end + 2;
	}
	return list;
}

char *client_streamed(json_t *list, bool chat, int index, const char **ret_finish)
{
	struct buf text;
	size_t i, j;
	json_t *event, *choice;
	buf_init(&text, 0);
	*ret_finish = NULL;
	json_array_foreach(list, i, event)
		json_array_foreach(at(event, "choices"), j, choice) {
			if (json_integer_value(at(choice, "index")) != index)
				continue;
			json_t *piece = at(choice, chat ? "delta.content" : "text");
			if (piece)
				buf_append(&text, json_string_value(piece), json_string_length(piece));
			assert_null(*ret_finish); /* the finish comes last */
			*ret_finish = json_string_value(at(choice, "finish_reason"));
		}
	return buf_steal(&text);
}
