/* Reads the two files that AWS tools share: the credentials file and the configuration file, where
 * the environment or the home directory has them. A file that is missing or cannot be read counts
 * as empty, with its error. Parsing is left to aws_profile.c; which profile is used, and for what,
 * is decided by credentials_plan.c. */
#include "uploaders/aws/credentials_files.h"

#include <errno.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/path.h"
#include "uploaders/aws/aws_environment.h"
#include "uploaders/aws/credentials_secret.h"

/* @return the caller's, NULL when there is none */
static char *find_home(char *const *environment, const char *home) {
        struct passwd pw, *found = NULL;
        char buf[4096];

        if (!home || !*home)
                home = aws_environment_get(environment, "HOME");
        if (!home && getpwuid_r(geteuid(), &pw, buf, sizeof buf, &found) == 0 && found)
                home = found->pw_dir;
        return home && *home ? strdup(home) : NULL;
}

/* @param text as the environment spells it, with `~/` for the home; NULL = the usual name below
 *   the home
 * @return the caller's, NULL when there is no home (or no memory) */
static char *build_path(const char *text, const char *usual, const char *home) {
        if (text && strncmp(text, "~/", 2) != 0)
                return strdup(text);
        if (!home)
                return NULL;
        return path_join(home, text ? text + 2 : usual);
}

static int read_file(CredentialsFile *f, AwsProfileFormat format, char *path /* taken */) {
        size_t n;

        *f = (CredentialsFile){ .path = path, .error = -ENOENT };
        if (!path)
                return 0;
        f->error = credentials_secret_read(path, AWS_PROFILE_MAX_BYTES, &f->text, &n);
        if (f->error == 0)
                f->error = aws_profile_parse(&f->parsed, format, f->text, n);
        return f->error == -ENOMEM ? -ENOMEM : 0;
}

static void file_done(CredentialsFile *f) {
        aws_profile_done(&f->parsed);
        credentials_secret_free(f->text);
        free(f->path);
        *f = (CredentialsFile){ 0 };
}

CredentialsFiles *credentials_files_free(CredentialsFiles *f) {
        if (!f)
                return NULL;
        file_done(&f->config);
        file_done(&f->credentials);
        free(f);
        return NULL;
}

typedef struct FilePaths { /* NULL: no home, no memory */
        char *config, *credentials;
} FilePaths;

/* AWS_CONFIG_FILE or ~/.aws/config, and AWS_SHARED_CREDENTIALS_FILE or ~/.aws/credentials */
static FilePaths build_paths(char *const *environment, const char *home_option) {
        _cleanup_free_ char *home = find_home(environment, home_option);

        return (FilePaths){
                .config = build_path(aws_environment_get(environment, "AWS_CONFIG_FILE"),
                                     ".aws/config", home),
                .credentials =
                        build_path(aws_environment_get(environment, "AWS_SHARED_CREDENTIALS_FILE"),
                                   ".aws/credentials", home),
        };
}

int credentials_files_new(CredentialsFiles **ret, char *const *environment, const char *home) {
        FilePaths paths = build_paths(environment, home);
        _cleanup_(credentials_files_freep) CredentialsFiles *f = calloc(1, sizeof *f);

        if (!f) {
                free(paths.config);
                free(paths.credentials);
                return -ENOMEM;
        }
        int r = read_file(&f->config, AWS_PROFILE_CONFIG, paths.config);
        int q = read_file(&f->credentials, AWS_PROFILE_CREDENTIALS, paths.credentials);
        if (r < 0 || q < 0)
                return -ENOMEM;
        *ret = TAKE_PTR(f);
        return 0;
}

/* FNV-1a, number by number */
static uint64_t hash_file(uint64_t hash, const char *path) {
        struct stat st;

        if (!path || stat(path, &st) < 0)
                return hash + 1;
        const uint64_t values[] = { st.st_dev,
                                    st.st_ino,
                                    (uint64_t)st.st_size,
                                    (uint64_t)st.st_mtim.tv_sec,
                                    (uint64_t)st.st_mtim.tv_nsec,
                                    (uint64_t)st.st_ctim.tv_sec,
                                    (uint64_t)st.st_ctim.tv_nsec };
        for (size_t i = 0; i < ELEMENTSOF(values); i++)
                hash = (hash ^ values[i]) * UINT64_C(1099511628211);
        return hash;
}

uint64_t credentials_files_version(char *const *environment, const char *home) {
        FilePaths paths = build_paths(environment, home);
        uint64_t hash = hash_file(hash_file(UINT64_C(14695981039346656037), paths.config),
                                  paths.credentials);

        free(paths.config);
        free(paths.credentials);
        return hash;
}

const char *credentials_files_get(const CredentialsFiles *f, const char *profile, const char *key) {
        const char *value = aws_profile_get(&f->credentials.parsed, profile, key);

        return value ? value : aws_profile_get(&f->config.parsed, profile, key);
}

const char *credentials_files_profile(char *const *environment, const char *wanted) {
        if (wanted && *wanted)
                return wanted;
        const char *text = aws_environment_get(environment, "AWS_PROFILE");
        return text ? text : "default";
}

const char *credentials_files_region(const CredentialsFiles *f, char *const *environment,
                                     const char *profile) {
        const char *region = aws_environment_get(environment, "AWS_REGION");

        if (!region)
                region = aws_environment_get(environment, "AWS_DEFAULT_REGION");
        return region ? region : credentials_files_get(f, profile, "region");
}
