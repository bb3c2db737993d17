#include "library/recording.h"

#include <stdlib.h>
#include <string.h>

static _Thread_local mp_recording *recorder;
mp_recording **mp_recorder(void) { return &recorder; }

/* Return the array with room for at least count + 1 elements, or NULL; update `room`. */
static void *with_room(void *array, ptrdiff_t count, ptrdiff_t *room, size_t size) {
    if (array && count < *room) return array;
    const ptrdiff_t more = count < 16 ? 32 : 2 * count;
    void *found = realloc(array, (size_t)more * size);
    if (found) *room = more;
    return found;
}

static mp_status add_span(mp_spans *spans, mp_span memory) {
    mp_span *at = with_room(spans->at, spans->count, &spans->room, sizeof memory);
    if (!at) return MP_NO_MEMORY;
    spans->at = at;
    at[spans->count++] = memory;
    return MP_DONE;
}

/* The number of the last span that contains an address, or -1. */
static ptrdiff_t find(const mp_spans *spans, const char *at) {
    ptrdiff_t number = spans->count - 1;
    while (number >= 0 && !(spans->at[number].begin <= at && at < spans->at[number].end)) number--;
    return number;
}

mp_status mp_add_buffer(mp_recording *r, mp_span memory) { return add_span(&r->buffers, memory); }
mp_status mp_add_constant(mp_recording *r, mp_span memory) { return add_span(&r->constants, memory); }
ptrdiff_t mp_find_buffer(const mp_recording *r, const char *at) { return find(&r->buffers, at); }
int mp_holds_constant(const mp_recording *r, const char *at) { return find(&r->constants, at) >= 0; }

/* Set the links of a note: its pointers into buffers. */
static mp_status link_note(const mp_recording *r, mp_note *note, const char *context) {
    for (const ptrdiff_t *offset = note->operation->pointers; *offset >= 0; offset++) {
        const char *at = *(const char *const *)(context + *offset);
        if (!at) continue;
        const ptrdiff_t buffer = mp_find_buffer(r, at);
        if (buffer >= 0) note->links[note->link_count++] = (mp_link){*offset, buffer, at - r->buffers.at[buffer].begin};
        else if (!mp_holds_constant(r, at)) return MP_UNSEEN;
    }
    return MP_DONE;
}

mp_status mp_record(mp_recording *r, const mp_operation *operation, const void *context, mp_cost cost) {
    mp_note note = {.operation = operation, .cost = cost};
    const mp_status status = link_note(r, &note, context);
    if (status) return status;
    mp_note *notes = with_room(r->notes, r->count, &r->room, sizeof note);
    if (!notes) return MP_NO_MEMORY;
    r->notes = notes;
    note.context = malloc(operation->size);
    if (!note.context) return MP_NO_MEMORY;
    memcpy(note.context, context, operation->size);
    notes[r->count++] = note;
    return MP_DONE;
}

void mp_forget_recording(mp_recording *r) {
    for (ptrdiff_t i = 0; i < r->count; i++) free(r->notes[i].context);
    free(r->notes);
    free(r->buffers.at);
    free(r->constants.at);
}
