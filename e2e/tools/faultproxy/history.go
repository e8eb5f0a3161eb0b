package faultproxy

import (
	"net/http"
	"slices"
	"sync"
)

// stored is one answer as it was passed on. It is not changed once it is in a history.
type stored struct {
	header http.Header
	body   []byte
}

// history keeps the oldest answers about each object, to be given again.
//
// mu guards everything below it.
type history struct {
	mu     sync.Mutex
	states map[Object]*stored
	lists  map[Object]*stored
	events map[Object][]byte
}

func newHistory() *history {
	return &history{states: make(map[Object]*stored), lists: make(map[Object]*stored), events: make(map[Object][]byte)}
}

// keepState keeps the frames of an initial state, unless there is an older one.
func (h *history) keepState(o Object, header http.Header, frames []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.states[o] == nil {
		h.states[o] = &stored{header: header.Clone(), body: slices.Clone(frames)}
	}
}

// keepList keeps the body of a list, unless there is an older one.
func (h *history) keepList(o Object, header http.Header, body []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lists[o] == nil {
		h.lists[o] = &stored{header: header.Clone(), body: body}
	}
}

// keepEvent keeps the frame of an event, unless there is an older one.
func (h *history) keepEvent(o Object, frame []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.events[o] == nil {
		h.events[o] = frame
	}
}

// state, list and event return what was kept, or nil.
func (h *history) state(o Object) *stored {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.states[o]
}

func (h *history) list(o Object) *stored {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lists[o]
}

func (h *history) event(o Object) []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.events[o]
}
