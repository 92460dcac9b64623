/* neuron-collect key new: makes a random key, and writes it as a line for agreement.key_file. What
 * agents do with keys is left to agent/peers. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/random.h>

#include "cli/common/cli.h"
#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "lib/base/fs.h"

#define SECRET_SIZE 32
#define ID_SIZE 17
#define LINE_SIZE (ID_SIZE + 2 * SECRET_SIZE + 2)

/* @param id  the present time, which shows people which key is the newest */
static int make_line(char id[ID_SIZE], char line[LINE_SIZE]) {
        uint8_t secret[SECRET_SIZE];
        char hex[2 * SECRET_SIZE + 1], moment[CLOCK_ISO_SIZE];
        if (getrandom(secret, sizeof secret, 0) != (ssize_t)sizeof secret)
                return -EIO;
        (void)snprintf(id, ID_SIZE, "%.15s",
                       clock_format_compact(moment, clock_realtime_usec(), 'T'));
        (void)snprintf(line, LINE_SIZE, "%s:%s\n", id, digest_hex(secret, sizeof secret, hex));
        digest_wipe(secret, sizeof secret);
        digest_wipe(hex, sizeof hex);
        return 0;
}

static int write_new(const char *path, const char *line) {
        _cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0)
                return -errno;
        int r = fchmod(fd, 0600) < 0 ? -errno : fs_write_all(fd, line, strlen(line));
        if (r == 0 && fsync(fd) < 0)
                r = -errno;
        if (r < 0)
                (void)unlink(path); /* this process created it; half a key is useless */
        return r;
}

static int write_file(const Cli *cli, const char *path, const char *id, const char *line) {
        int r = write_new(path, line);
        if (r == -EEXIST)
                cli_error("'%s' exists and is not overwritten; add a key to it with "
                          "`neuron-collect key new >> FILE`, or give another name",
                          path);
        else if (r < 0)
                cli_error("cannot write '%s': %s", path, strerror(-r));
        if (r < 0)
                return CLI_NO;
        if (cli->json)
                return cli_print_new_json(
                        cli, json_pack("{s:s, s:o}", "id", id, "file", cli_json_string(path)));
        cli_line("key '%s' written to '%s'; give all nodes the same file", id, path);
        return CLI_YES;
}

int cmd_key(const Cli *cli, int argc, char **argv) {
        char id[ID_SIZE], line[LINE_SIZE];
        if (cli_options(argv[0], argc, argv, (const CliOption[]){ { 0 } }) != CLI_YES)
                return CLI_USAGE;
        argc -= optind;
        argv += optind;
        if (argc < 1 || argc > 2 || strcmp(argv[0], "new") != 0 || (argc == 2 && !*argv[1]))
                return cli_usage("key", "give `new`, and the file to write, or none for stdout");
        if (make_line(id, line) < 0)
                return cli_error("the kernel has no random numbers yet");
        int code = CLI_YES;
        if (argc == 2)
                code = write_file(cli, argv[1], id, line);
        else
                fputs(line, stdout);
        digest_wipe(line, sizeof line);
        return code;
}
