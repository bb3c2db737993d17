/* Calls the functions of a shared library made of tests/vocabulary.c, for tests/test_vocabulary.py where that library
 * is not of the CPU that runs Python: `words LIBRARY`. A request is a `call`, then the bytes of its operands and of its
 * result as they are before; the answer is the bytes of the result. First of all comes the library's `conditions`, in
 * 256 bytes. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPERANDS = 3, PAGE = 4096, MOST = 1 << 18 };

typedef struct {
    char name[32];               /* an answer of one byte follows: whether there is such a function. If so, and ... */
    int64_t wanted;              /* ... this is not 0, it is called */
    int64_t n;
    int64_t bytes[OPERANDS + 1]; /* of a, b, c and out; -1: NULL */
    int64_t at[OPERANDS + 1];    /* their addresses modulo PAGE */
} call;

typedef void (*word)(const void *, const void *, const void *, ptrdiff_t, void *);

static void must(int done, const char *what) {
    if (done) return;
    fprintf(stderr, "words: %s\n", what);
    exit(1);
}

int main(int count, char **arguments) {
    static _Alignas(PAGE) char memory[OPERANDS + 1][MOST + 2 * PAGE];
    must(count == 2, "expected a library");
    void *library = dlopen(arguments[1], RTLD_NOW);
    must(library != NULL, dlerror());
    char conditions[256] = "";
    snprintf(conditions, sizeof conditions, "%s", (const char *)dlsym(library, "conditions"));
    fwrite(conditions, 1, sizeof conditions, stdout);
    fflush(stdout);
    for (call c; fread(&c, sizeof c, 1, stdin) == 1; fflush(stdout)) {
        void *const found = dlsym(library, c.name);
        putchar(found != NULL);
        if (!found || !c.wanted) continue;
        word function;
        memcpy(&function, &found, sizeof function);
        char *place[OPERANDS + 1] = {NULL};
        for (int i = 0; i <= OPERANDS; i++) {
            if (c.bytes[i] < 0) continue;
            must(c.bytes[i] <= MOST, "too many bytes");
            place[i] = memory[i] + c.at[i];
            must(fread(place[i], 1, (size_t)c.bytes[i], stdin) == (size_t)c.bytes[i], "a request ends early");
        }
        function(place[0], place[1], place[2], (ptrdiff_t)c.n, place[OPERANDS]);
        fwrite(place[OPERANDS], 1, (size_t)c.bytes[OPERANDS], stdout);
    }
    return 0;
}
