/* Intrusive doubly linked list with a sentinel head. */
#ifndef BATON_BASE_LIST_H
#define BATON_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

#include "base/check.h"

struct list {
	struct list *next, *prev;
};

static inline void list_init(struct list *head)
{
	head->next = head->prev = head;
}

static inline bool list_empty(const struct list *head)
{
	return head->next == head;
}

static inline void list_insert_after(struct list *node, struct list *at)
{
	node->next = at->next;
	node->prev = at;
	at->next->prev = node;
	at->next = node;
}

static inline void list_push_back(struct list *head, struct list *node)
{
	list_insert_after(node, head->prev);
}

static inline void list_push_front(struct list *head, struct list *node)
{
	list_insert_after(node, head);
}

/* Removing leaves the node a list of its own, so that removing twice is harmless. */
static inline void list_remove(struct list *node)
{
	node->prev->next = node->next;
	node->next->prev = node->prev;
	list_init(node);
}

#define list_entry(pointer, type, member) container_of(pointer, type, member)
#define list_for_each(node, head) for (struct list *node = (head)->next; node != (head); node = node->next)
#define list_for_each_safe(node, after, head)                                                    \
	for (struct list *node = (head)->next, *after = node->next; node != (head);              \
	     node = after, after = node->next)

#endif
