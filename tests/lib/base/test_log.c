/* The log, read back from a pipe in stderr's place and, where a mount namespace may be made, from a
 * journal's socket. */
#include "lib/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "tests/harness/skip.h"

static int real_stderr = -1, pipe_fds[2] = { -1, -1 };
static unsigned n_writes;

ssize_t __real_write(int fd, const void *data, size_t n);
ssize_t __wrap_write(int fd, const void *data, size_t n);

ssize_t __wrap_write(int fd, const void *data, size_t n) {
        n_writes += fd == STDERR_FILENO;
        return __real_write(fd, data, n);
}

static int capture_setup(void **state) {
        n_writes = 0;
        real_stderr = dup(STDERR_FILENO);
        if (real_stderr < 0 || pipe2(pipe_fds, O_CLOEXEC | O_NONBLOCK) < 0)
                return -1;
        return dup2(pipe_fds[1], STDERR_FILENO) < 0 ? -1 : 0;
}

static int capture_teardown(void **state) {
        (void)dup2(real_stderr, STDERR_FILENO);
        (void)close(real_stderr);
        (void)close(pipe_fds[0]);
        (void)close(pipe_fds[1]);
        return 0;
}

/* What has been logged since the last call. */
static const char *captured(void) {
        static char text[65536];
        ssize_t n = read(pipe_fds[0], text, sizeof text - 1);

        text[n > 0 ? n : 0] = '\0';
        return text;
}

static void text_has_a_word_for_the_level(void **state) {
        static const char *const words[] = { "emergency", "alert",  "critical", "error",
                                             "warning",   "notice", "info",     "debug" };

        log_setup(LOG_FORMAT_TEXT, LOG_DEBUG);
        for (int level = LOG_EMERG; level <= LOG_DEBUG; level++) {
                char expected[64];

                log_write(level, 0, NULL, "number %d", level);
                (void)snprintf(expected, sizeof expected, "%s: number %d\n", words[level], level);
                assert_string_equal(captured(), expected);
        }
}

static void the_error_and_the_dump_are_on_the_line(void **state) {
        log_setup(LOG_FORMAT_TEXT, LOG_INFO);
        log_dump("core-1", LOG_WARNING, -ENOSPC, "cannot write '%s'", "x");
        assert_string_equal(captured(),
                            "warning: core-1: cannot write 'x': No space left on device\n");
        log_error(-EIO, "bad");
        assert_string_equal(captured(), "error: bad: Input/output error\n");
        log_notice("%s", "good");
        assert_string_equal(captured(), "notice: good\n");
}

static void levels_above_the_maximum_are_silent(void **state) {
        log_setup(LOG_FORMAT_TEXT, LOG_WARNING);
        log_info("no");
        log_debug("no");
        log_warning(0, "yes");
        assert_string_equal(captured(), "warning: yes\n");
        assert_true(log_enabled(LOG_WARNING));
        assert_false(log_enabled(LOG_NOTICE));
}

static void a_line_is_one_write(void **state) {
        log_setup(LOG_FORMAT_TEXT, LOG_INFO);
        log_dump("id", LOG_INFO, -EIO, "one");
        assert_int_equal(n_writes, 1);
        log_setup(LOG_FORMAT_JSON, LOG_INFO);
        log_dump("id", LOG_INFO, -EIO, "one");
        assert_int_equal(n_writes, 2);
}

static void a_file_name_cannot_forge_a_line(void **state) {
        log_setup(LOG_FORMAT_TEXT, LOG_INFO);
        log_dump("id\nerror: forged", LOG_INFO, 0, "took '%s'",
                 "x\nerror: forged\r\033]0;title\a\xc2\x9b"
                 "31m\xff\x7f ü");
        assert_string_equal(captured(), "info: id\\x0aerror: forged: took 'x\\x0aerror: forged\\x0d"
                                        "\\x1b]0;title\\x07\\xc2\\x9b31m\\xff\\x7f ü'\n");
}

static void json_is_an_object_a_line_that_others_can_read(void **state) {
        _cleanup_free_ char *line = NULL;
        json_t *o;
        json_error_t error;

        log_setup(LOG_FORMAT_JSON, LOG_INFO);
        log_dump("id\"\\", LOG_WARNING, -ENOSPC, "a \"quoted\" \\ b\nc\t\xff ü€");
        line = strdup(captured());
        assert_non_null(line);
        assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
        o = json_loads(line, JSON_REJECT_DUPLICATES, &error);
        assert_non_null(o);
        assert_string_equal(json_string_value(json_object_get(o, "level")), "warning");
        assert_string_equal(json_string_value(json_object_get(o, "dump_id")), "id\"\\");
        assert_string_equal(json_string_value(json_object_get(o, "message")),
                            "a \"quoted\" \\ b\\x0ac\\x09\\xff ü€: No space left on device");
        assert_int_equal(json_integer_value(json_object_get(o, "errno")), ENOSPC);
        assert_int_equal(strlen(json_string_value(json_object_get(o, "time"))), 27);
        assert_int_equal(json_object_size(o), 5);
        json_decref(o);

        log_info("plain");
        o = json_loads(captured(), JSON_REJECT_DUPLICATES, &error);
        assert_non_null(o);
        assert_int_equal(json_object_size(o), 3);
        json_decref(o);
}

static void a_line_that_is_too_long_is_cut_and_marked(void **state) {
        static const char *const fillers[] = {
                "x", "\"", "\\", "\n", "\xff", "ü", "𝄞", "\xc2\x85"
        };
        static char message[8192], id[1024];

        for (size_t i = 0; i < ELEMENTSOF(fillers); i++) {
                const char *text;
                json_error_t error;
                json_t *o;

                message[0] = id[0] = '\0';
                while (strlen(message) + 8 < sizeof message)
                        strcat(message, fillers[i]);
                while (strlen(id) + 8 < sizeof id)
                        strcat(id, fillers[i]);
                log_setup(LOG_FORMAT_TEXT, LOG_INFO);
                log_dump(id, LOG_INFO, -EIO, "%s", message);
                text = captured();
                assert_in_range(strlen(text), 3000, PIPE_BUF);
                assert_non_null(strstr(text, "…: Input/output error\n"));
                assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
                log_setup(LOG_FORMAT_JSON, LOG_INFO);
                log_dump(id, LOG_INFO, -EIO, "%s", message);
                text = captured();
                assert_in_range(strlen(text), 3000, PIPE_BUF);
                o = json_loads(text, JSON_REJECT_DUPLICATES, &error);
                assert_non_null(o);
                assert_int_equal(json_integer_value(json_object_get(o, "errno")), EIO);
                json_decref(o);
        }
}

static void errno_is_kept(void **state) {
        log_setup(LOG_FORMAT_TEXT, LOG_INFO);
        (void)close(pipe_fds[0]); /* the write fails now, with EPIPE */
        pipe_fds[0] = -1;
        errno = ENOTTY;
        log_info("into the void");
        assert_int_equal(errno, ENOTTY);
        assert_int_equal(n_writes, 1);
}

static void auto_is_text_unless_stderr_is_the_journals(void **state) {
        assert_int_equal(setenv("JOURNAL_STREAM", "1:1", 1), 0);
        log_setup(LOG_FORMAT_AUTO, LOG_INFO);
        log_info("here");
        assert_int_equal(unsetenv("JOURNAL_STREAM"), 0);
        assert_string_equal(captured(), "info: here\n");
}

/* A datagram socket where the journal's would be, seen by this process only. @return fd, -1 = not
 * permitted here */
static int fake_journal(void) {
        struct sockaddr_un address = { .sun_family = AF_UNIX,
                                       .sun_path = "/run/systemd/journal/socket" };
        int fd;

        if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL) < 0 ||
            mount("tmpfs", "/run", "tmpfs", 0, NULL) < 0)
                return -1;
        if (mkdir("/run/systemd", 0755) < 0 || mkdir("/run/systemd/journal", 0755) < 0)
                return -1;
        fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0)
                return -1;
        return fd;
}

enum { CHILD_SKIPS = 77 };

static bool has_field(const char *text, const char *field) {
        const char *at = strstr(text, field);

        return at && (at == text || at[-1] == '\n') && at[strlen(field)] == '\n';
}

/* Runs in a child with its own /run. @return 0, or which claim is not true */
static int judge_journal(void) {
        static char text[8192];
        struct stat st;
        char stream[64];
        int fd;

        log_setup(LOG_FORMAT_JOURNAL, LOG_INFO);
        fd = fake_journal();
        if (fd < 0)
                return CHILD_SKIPS;
        if (fstat(STDERR_FILENO, &st) < 0)
                return 1;
        (void)snprintf(stream, sizeof stream, "%ju:%ju", (uintmax_t)st.st_dev,
                       (uintmax_t)st.st_ino);
        if (setenv("JOURNAL_STREAM", stream, 1) < 0)
                return 2;
        log_setup(LOG_FORMAT_AUTO, LOG_INFO);
        log_dump("core-1", LOG_WARNING, -ENOSPC, "cannot write '%s'", "x\nPRIORITY=0");
        if (read(fd, text, sizeof text - 1) <= 0)
                return 3;
        if (!has_field(text, "MESSAGE=core-1: cannot write 'x\\x0aPRIORITY=0': No space left on "
                             "device") ||
            !has_field(text, "PRIORITY=4") || !has_field(text, "DUMP_ID=core-1") ||
            !has_field(text, "ERRNO=28"))
                return 4;
        memset(text, 0, sizeof text);
        log_setup(LOG_FORMAT_JOURNAL, LOG_INFO);
        log_info("plain");
        if (read(fd, text, sizeof text - 1) <= 0)
                return 5;
        if (!has_field(text, "MESSAGE=plain") || !has_field(text, "PRIORITY=6") ||
            strstr(text, "DUMP_ID=") || strstr(text, "ERRNO="))
                return 6;
        return n_writes == 0 ? 0 : 7; /* none went to stderr */
}

static void the_journal_gets_fields(void **state) {
        int status;
        pid_t pid = fork();

        assert_true(pid >= 0);
        if (pid == 0)
                _exit(judge_journal());
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        if (WEXITSTATUS(status) == CHILD_SKIPS)
                SKIP_BECAUSE("no right to a mount namespace");
        assert_int_equal(WEXITSTATUS(status), 0);
}

static void without_a_journal_its_format_becomes_text(void **state) {
        if (access("/run/systemd/journal/socket", F_OK) == 0)
                SKIP_BECAUSE("a journal runs");
        log_setup(LOG_FORMAT_JOURNAL, LOG_INFO);
        log_info("here");
        assert_string_equal(captured(), "info: here\n");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, capture_setup, capture_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(text_has_a_word_for_the_level),
                TEST(the_error_and_the_dump_are_on_the_line),
                TEST(levels_above_the_maximum_are_silent),
                TEST(a_line_is_one_write),
                TEST(a_file_name_cannot_forge_a_line),
                TEST(json_is_an_object_a_line_that_others_can_read),
                TEST(a_line_that_is_too_long_is_cut_and_marked),
                TEST(errno_is_kept),
                TEST(auto_is_text_unless_stderr_is_the_journals),
                TEST(the_journal_gets_fields),
                TEST(without_a_journal_its_format_becomes_text),
        };

        (void)signal(SIGPIPE, SIG_IGN);
        return cmocka_run_group_tests_name("base/log", tests, NULL, NULL);
}
