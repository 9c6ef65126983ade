/* The least that an open through FUSE passthrough can cost: a server that does nothing but answer.
   cc -O2 -pthread open_floor.c -o open_floor && ./open_floor SOURCE MOUNTPOINT THREADS SPIN_US
   SOURCE holds files f00000 ... ; end with umount MOUNTPOINT. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <poll.h>
#define FILES 200000
/* newer than Debian 12's headers */
struct backing_map { int32_t fd; uint32_t flags; uint64_t padding; };
#define BACKING_OPEN _IOW(229, 1, struct backing_map)
#define PASSTHROUGH2 (1u << 5)
#define OPEN_PASSTHROUGH (1u << 7)

static int fuse, spin_us; static const char *source; static int backing[FILES];
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static void answer(uint64_t unique, int error, const void *body, size_t size) {
    char out[4096]; struct fuse_out_header h = {sizeof h + size, error, unique};
    memcpy(out, &h, sizeof h); memcpy(out + sizeof h, body, size);
    if (write(fuse, out, sizeof h + size) < 0) {}
}
static void attributes(uint64_t node, struct fuse_attr *a) {
    memset(a, 0, sizeof *a); a->ino = node; a->nlink = 1; a->blksize = 4096;
    if (node == 1) { a->mode = S_IFDIR | 0755; return; }
    char path[512]; struct stat s; snprintf(path, sizeof path, "%s/f%05d", source, (int)node - 2);
    if (stat(path, &s) == 0) { a->size = s.st_size; a->mode = S_IFREG | 0644; }
}
static void *serve(void *unused) {
    static __thread char in[1 << 20] __attribute__((aligned(8)));
    struct fuse_in_header *h = (void *)in; void *arg = in + sizeof *h; double last = now();
    struct pollfd p = {fuse, POLLIN, 0};
    for (;;) {
        ssize_t n = read(fuse, in, sizeof in);
        if (n < 0) { if (errno == EAGAIN) { if (now() - last > spin_us * 1e-6) poll(&p, 1, -1); continue; }
            if (errno == ENODEV) exit(0); continue; }
        last = now();
        switch (h->opcode) {
        case FUSE_INIT: { struct fuse_init_out o = {0}; struct fuse_init_in *i = arg; o.major = 7; o.minor = i->minor;
            o.max_readahead = i->max_readahead; o.max_write = 65536; o.max_pages = 256; o.max_background = 64;
            o.flags = FUSE_INIT_EXT | FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES; o.flags2 = PASSTHROUGH2;
            ((uint32_t *)&o)[9] = 2; /* max_stack_depth, after flags2 */ answer(h->unique, 0, &o, sizeof o); break; }
        case FUSE_LOOKUP: { struct fuse_entry_out o = {0}; int k = -1;
            if (sscanf(arg, "f%d", &k) != 1 || k < 0) { answer(h->unique, -ENOENT, 0, 0); break; }
            o.nodeid = k + 2; o.entry_valid = o.attr_valid = 1000; attributes(o.nodeid, &o.attr); answer(h->unique, 0, &o, sizeof o); break; }
        case FUSE_GETATTR: { struct fuse_attr_out o = {0}; o.attr_valid = 1000; attributes(h->nodeid, &o.attr); answer(h->unique, 0, &o, sizeof o); break; }
        case FUSE_OPEN: { int k = h->nodeid - 2; struct fuse_open_out o = {0};
            if (!backing[k]) { char path[512]; snprintf(path, sizeof path, "%s/f%05d", source, k); int fd = open(path, O_RDONLY);
                struct backing_map m = {.fd = fd}; backing[k] = ioctl(fuse, BACKING_OPEN, &m); close(fd); }
            o.open_flags = OPEN_PASSTHROUGH | (1u << 5); *(int *)&o.padding = backing[k]; answer(h->unique, 0, &o, sizeof o); break; }
        case FUSE_RELEASE: answer(h->unique, 0, 0, 0); break;
        case FUSE_FORGET: case FUSE_BATCH_FORGET: case FUSE_INTERRUPT: break;
        default: answer(h->unique, -ENOSYS, 0, 0);
        }
    }
}
int main(int argc, char **argv) {
    source = argv[1]; int threads = atoi(argv[3]); spin_us = atoi(argv[4]);
    fuse = open("/dev/fuse", O_RDWR | (spin_us ? O_NONBLOCK : 0)); char options[200];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,max_read=1048576", fuse);
    if (mount("floor", argv[2], "fuse.floor", MS_RDONLY, options)) { perror("mount"); return 1; }
    for (int i = 0; i < threads; i++) { pthread_t t; pthread_create(&t, 0, serve, 0); }
    pause(); return 0;
}
