/* An intrusive doubly linked list with a sentinel head. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef struct ListLink {
        struct ListLink *next, *prev;
} ListLink;

#define CONTAINER_OF(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

#define LIST_FOREACH(link, head)                                                                   \
        for (ListLink *link = (head)->next; link != (head); link = link->next)
#define LIST_FOREACH_SAFE(link, head)                                                              \
        for (ListLink *link = (head)->next, *_next_##link = link->next; link != (head);            \
             link = _next_##link, _next_##link = link->next)
/* Over what the links lie in. @param member  the link in it */
#define LIST_FOREACH_ITEM(type, item, member, head)                                                \
        for (type *item = CONTAINER_OF((head)->next, type, member); &item->member != (head);       \
             item = CONTAINER_OF(item->member.next, type, member))
#define LIST_FOREACH_ITEM_SAFE(type, item, member, head)                                           \
        for (type *item = CONTAINER_OF((head)->next, type, member),                                \
                  *_next_##item = CONTAINER_OF(item->member.next, type, member);                   \
             &item->member != (head);                                                              \
             item = _next_##item, _next_##item = CONTAINER_OF(item->member.next, type, member))

static inline void list_init(ListLink *l) {
        l->next = l->prev = l;
}

static inline bool list_is_empty(const ListLink *head) {
        return head->next == head;
}

static inline void list_append(ListLink *head, ListLink *l) {
        l->prev = head->prev;
        l->next = head;
        head->prev->next = l;
        head->prev = l;
}

/* Leaves l linked to itself, so removing twice is harmless. */
static inline void list_remove(ListLink *l) {
        l->prev->next = l->next;
        l->next->prev = l->prev;
        list_init(l);
}
