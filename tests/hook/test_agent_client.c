/* What the agent says is read as strictly as what a stranger says. */
#include "hook/hook.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"

static AgentReply answer_to(const char *text) {
        AgentReply a;
        agent_client_parse(text, strlen(text), &a);
        return a;
}

static void the_words_of_the_contract_are_known(void **state) {
        AgentReply a = answer_to("accepted 1999000");
        assert_int_equal(a.kind, AGENT_REPLY_ACCEPTED);
        assert_int_equal(a.wait_usec, 1999000);
        assert_string_equal(a.text, "");
        a = answer_to("accepted 5\nrefused: it is not yours\nmore");
        assert_int_equal(a.kind, AGENT_REPLY_ACCEPTED);
        assert_string_equal(a.text, "it is not yours");
        a = answer_to("refused it is too long");
        assert_int_equal(a.kind, AGENT_REPLY_REFUSED);
        assert_string_equal(a.text, "it is too long");
        assert_int_equal(answer_to("snapshot done").kind, AGENT_REPLY_SNAPSHOT);
        a = answer_to("snapshot none they are off");
        assert_int_equal(a.kind, AGENT_REPLY_NO_SNAPSHOT);
        assert_string_equal(a.text, "they are off");
        assert_int_equal(answer_to("snapshot none").kind, AGENT_REPLY_NO_SNAPSHOT);
        assert_int_equal(answer_to("refused").kind, AGENT_REPLY_REFUSED);
}

static void waiting_is_bounded_whatever_it_reports(void **state) {
        assert_int_equal(answer_to("accepted 18446744073709551615").wait_usec, AGENT_WAIT_MAX_USEC);
        assert_int_equal(answer_to("accepted 0").wait_usec, 0);
}

static void all_else_is_garbage(void **state) {
        static const char *const bad[] = { "",
                                           "accepted",
                                           "accepted -1",
                                           "accepted x",
                                           "acceptedx 1",
                                           "snapshot",
                                           "snapshot donex",
                                           "snapshot done now",
                                           "ACCEPTED 1",
                                           "accepted 1 2",
                                           " accepted 1",
                                           "finished",
                                           "accepted 99999999999999999999",
                                           "{\"a\":1}",
                                           "\xff\xfe" };
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                assert_int_equal(answer_to(bad[i]).kind, AGENT_REPLY_INVALID);
        AgentReply a;
        agent_client_parse("accepted 1\0x", 12, &a);
        assert_int_equal(a.kind, AGENT_REPLY_INVALID);
        static char large[100000];
        memset(large, 'x', sizeof large);
        memcpy(large, "refused ", 8);
        agent_client_parse(large, sizeof large, &a);
        assert_int_equal(a.kind, AGENT_REPLY_INVALID);
        agent_client_parse(large, 4000, &a);
        assert_int_equal(a.kind, AGENT_REPLY_REFUSED);
        assert_int_equal(strlen(a.text), AGENT_REPLY_TEXT_SIZE - 1);
}

static void its_last_word_accepts_back_what_there_will_never_be(void **state) {
        static const char *const wanted[] = { "finished without record snapshot",
                                              "finished without snapshot",
                                              "finished without record", "finished" };
        for (unsigned i = 0; i < ELEMENTSOF(wanted); i++) {
                int fds[2];
                char said[64];
                assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
                agent_client_finish(fds[0], i & 1, i & 2);
                ssize_t n = recv(fds[1], said, sizeof said - 1, MSG_DONTWAIT);
                assert_true(n > 0);
                said[n] = '\0';
                assert_string_equal(said, wanted[i]);
                (void)close(fds[0]);
                (void)close(fds[1]);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_words_of_the_contract_are_known),
                cmocka_unit_test(waiting_is_bounded_whatever_it_reports),
                cmocka_unit_test(all_else_is_garbage),
                cmocka_unit_test(its_last_word_accepts_back_what_there_will_never_be),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
