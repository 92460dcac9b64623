/* The Python distributions of a root, by the names of the directories that pip leaves. No Python is
 * executed, and no file is opened. */
#include "collectors/host/pip.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "collectors/host/procfs.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/path.h"

enum { ENTRIES_MAX = 100000, PLACES_MAX = 64 };

bool pip_parse(const char *directory, char name[static PACKAGE_NAME_SIZE],
               char version[static PACKAGE_VERSION_SIZE]) {
        bool is_egg = path_has_suffix(directory, ".egg-info");
        size_t n, n_name, k = 0;

        if (!is_egg && !path_has_suffix(directory, ".dist-info"))
                return false;
        n = strlen(directory) - (is_egg ? strlen(".egg-info") : strlen(".dist-info"));
        n_name = MIN(strcspn(directory, "-"), n);
        if (n_name == 0 || n_name >= PACKAGE_NAME_SIZE)
                return false;
        for (size_t i = 0; i < n_name; i++) {
                unsigned char c = (unsigned char)directory[i];
                if (!isalnum(c) && c != '_' && c != '.')
                        return false;
                if (isalnum(c))
                        name[k++] = (char)tolower(c);
                else if (k == 0 || name[k - 1] != '-')
                        name[k++] = '-';
        }
        name[k] = '\0';
        version[0] = '\0';
        if (n_name < n) {
                size_t n_version = n - n_name - 1;
                if (is_egg) /* without `-py3.10` and what may follow */
                        n_version = MIN(n_version, strcspn(directory + n_name + 1, "-"));
                n_version = MIN(n_version, (size_t)PACKAGE_VERSION_SIZE - 1);
                memcpy(version, directory + n_name + 1, n_version);
                version[n_version] = '\0';
        }
        return true;
}

bool pip_is_relevant(const char *name) {
        static const char *const patterns[] = { "*neuron*",       "torch*", "jax*",
                                                "*transformers*", "vllm*",  "nki",
                                                "nki-*",          "nrtpy*", "optimum*" };

        for (size_t i = 0; i < ELEMENTSOF(patterns); i++)
                if (fnmatch(patterns[i], name, 0) == 0)
                        return true;
        return false;
}

static DIR *open_directory(const PackageRoot *root, const char *path) {
        DIR *dir = NULL;

        (void)fs_opendir_fd(procfs_root_open(root->fd, path, O_RDONLY | O_DIRECTORY, NULL), &dir);
        return dir;
}

void pip_list_directory(PackageRoot *root, const char *path) {
        _cleanup_closedir_ DIR *dir = open_directory(root, path);
        const struct dirent *entry;
        size_t n_entries = 0, n = 0;

        if (!dir)
                return;
        package_root_begin(root, "pip");
        procfs_add_path(&root->b, "directory", path);
        json_out_array(&root->b, "packages");
        while (n_entries++ < ENTRIES_MAX && (entry = readdir(dir))) {
                char name[PACKAGE_NAME_SIZE], version[PACKAGE_VERSION_SIZE];
                if (!pip_parse(entry->d_name, name, version) || !pip_is_relevant(name) ||
                    n++ >= PACKAGES_MAX)
                        continue;
                json_out_object(&root->b, NULL);
                json_out_string(&root->b, "name", name);
                json_out_string(&root->b, "version", version[0] != '\0' ? version : NULL);
                json_out_end_object(&root->b);
        }
        json_out_end_array(&root->b);
        json_out_bool(&root->b, "cut", n > PACKAGES_MAX || n_entries > ENTRIES_MAX);
        if (n > 0)
                package_root_end(root);
        strbuf_clear(&root->b);
}

/* Lists path/ENTRY/REST for each entry that matches a pattern, and each rest. */
static void expand(PackageRoot *root, const char *path, const char *pattern,
                   const char *const *rest) {
        _cleanup_closedir_ DIR *dir = open_directory(root, path);
        const struct dirent *entry;
        size_t n = 0;

        while (dir && n < PLACES_MAX && (entry = readdir(dir))) {
                if (entry->d_name[0] == '.' || fnmatch(pattern, entry->d_name, 0) != 0)
                        continue;
                n++;
                for (const char *const *r = rest; *r; r++) {
                        char place[PATH_MAX];
                        if (snprintf(place, sizeof place, "%s/%s%s", path, entry->d_name, *r) <
                            (int)sizeof place)
                                pip_list_directory(root, place);
                }
        }
}

/* AWS's images have virtual environments below /opt (/opt/aws_neuronx_venv_…), and so has conda. */
static void expand_opt(PackageRoot *root) {
        static const char *const places[] = { "/site-packages", NULL };
        _cleanup_closedir_ DIR *dir = open_directory(root, "/opt");
        const struct dirent *entry;
        size_t n = 0;

        while (dir && n < PLACES_MAX && (entry = readdir(dir))) {
                char path[PATH_MAX];
                if (entry->d_name[0] == '.')
                        continue;
                n++;
                (void)snprintf(path, sizeof path, "/opt/%s/lib", entry->d_name);
                expand(root, path, "python3*", places);
        }
}

void pip_list(PackageRoot *root) {
        static const char *const places[] = { "/dist-packages", "/site-packages", NULL };
        static const char *const libraries[] = { "/usr/local/lib", "/usr/local/lib64", "/usr/lib",
                                                 "/usr/lib64" };

        for (size_t i = 0; i < ELEMENTSOF(libraries); i++)
                expand(root, libraries[i], "python3*", places);
        expand_opt(root);
}
