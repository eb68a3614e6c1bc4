#include "base/test_util.h"

#include "base/list.h"

struct item {
	int number;
	struct list link;
};

static int digits(const struct list *head)
{
	int all = 0;
	list_for_each(node, head)
		all = all * 10 + list_entry(node, struct item, link)->number;
	return all;
}

static void test_list(void **state)
{
	struct item items[5];
	struct list head;

	list_init(&head);
	assert_true(list_empty(&head));
	for (int i = 0; i < 5; i++) {
		items[i].number = i + 1;
		if (i % 2)
			list_push_front(&head, &items[i].link);
		else
			list_push_back(&head, &items[i].link);
	}
	assert_int_equal(digits(&head), 42135);
	list_remove(&items[0].link);
	list_remove(&items[0].link);
	assert_int_equal(digits(&head), 4235);
	list_insert_after(&items[0].link, &items[3].link);
	assert_int_equal(digits(&head), 41235);
	list_for_each_safe(node, after, &head)
		if (list_entry(node, struct item, link)->number % 2)
			list_remove(node);
	assert_int_equal(digits(&head), 42);
	list_remove(&items[3].link);
	list_remove(&items[1].link);
	assert_true(list_empty(&head));
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_list) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
