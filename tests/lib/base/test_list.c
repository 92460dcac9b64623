/* The intrusive list. */
#include "lib/base/list.h"

#include "tests/harness/unit.h"

typedef struct Item {
        int number;
        ListLink link;
} Item;

static int sum_in_order(ListLink *head) {
        int n = 0;

        LIST_FOREACH (l, head)
                n = 10 * n + CONTAINER_OF(l, Item, link)->number;
        return n;
}

static void items_come_in_the_order_they_were_added(void **state) {
        Item a = { .number = 1 }, b = { .number = 2 }, c = { .number = 3 };
        ListLink head;

        list_init(&head);
        assert_true(list_is_empty(&head));
        assert_int_equal(sum_in_order(&head), 0);
        list_append(&head, &a.link);
        list_append(&head, &b.link);
        list_append(&head, &c.link);
        assert_false(list_is_empty(&head));
        assert_int_equal(sum_in_order(&head), 123);
        list_remove(&b.link);
        list_remove(&b.link); /* harmless */
        assert_int_equal(sum_in_order(&head), 13);
        list_append(&head, &b.link);
        assert_int_equal(sum_in_order(&head), 132);
}

static void the_safe_walk_may_remove_what_it_stands_on(void **state) {
        Item items[5] = { { 0 } };
        ListLink head;

        list_init(&head);
        for (int i = 0; i < 5; i++) {
                items[i].number = i + 1;
                list_append(&head, &items[i].link);
        }
        LIST_FOREACH_SAFE (l, &head)
                if (CONTAINER_OF(l, Item, link)->number % 2 == 1)
                        list_remove(l);
        assert_int_equal(sum_in_order(&head), 24);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(items_come_in_the_order_they_were_added),
                cmocka_unit_test(the_safe_walk_may_remove_what_it_stands_on),
        };

        return cmocka_run_group_tests_name("base/list", tests, NULL, NULL);
}
