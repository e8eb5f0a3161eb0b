package integration

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// objectState is what every key of an object holds: how often the object was created, and how
// often written since. It never goes back.
type objectState struct{ incarnation, write int }

func (s objectState) String() string { return fmt.Sprintf("%d.%d", s.incarnation, s.write) }

func (s objectState) before(o objectState) bool {
	return s.incarnation < o.incarnation || s.incarnation == o.incarnation && s.write < o.write
}

func parseState(text string) (objectState, error) {
	var s objectState
	if _, err := fmt.Sscanf(text, "%d.%d", &s.incarnation, &s.write); err != nil {
		return objectState{}, fmt.Errorf("a file holds %q: %w", text, err)
	}
	return s, nil
}

// thing is a ConfigMap or a Secret of a node with two keys, which both hold its state.
// It belongs to one goroutine.
type thing struct {
	node   *node
	kind   string
	name   string
	exists bool
	state  objectState
}

func (n *node) newThing(kind, name string) *thing {
	n.t.Helper()
	o := &thing{node: n, kind: kind, name: name}
	o.write()
	return o
}

// source is the entry of a volume's sources that shows the object.
func (o *thing) source() string { return fmt.Sprintf("- %s: {name: %s}\n", o.kind, o.name) }

// keys are the names of its files.
func (o *thing) keys() []string { return []string{o.name + "-one", o.name + "-two"} }

// write changes the object, or creates it.
func (o *thing) write() {
	o.node.t.Helper()
	if !o.exists {
		o.state = objectState{incarnation: o.state.incarnation + 1}
		o.exists = true
	}
	o.state.write++
	data := make(map[string]string)
	for _, key := range o.keys() {
		data[key] = o.state.String()
	}
	o.node.putObject(o.kind, o.name, data)
}

func (o *thing) delete() {
	o.node.t.Helper()
	if !o.exists {
		return
	}
	o.exists = false
	o.node.removeObject(o.kind, o.name)
}

// observer reads a volume over and over, and notes the first thing that must not be: a
// read that fails, keys of one object that differ, a state that went back. One goroutine
// reads; stop ends it and says what it noted. mu guards everything below it.
type observer struct {
	node   *node
	volume *harness.Volume
	things []*thing
	done   chan struct{}
	ended  sync.WaitGroup
	reads  reads

	mu   sync.Mutex
	seen map[string]objectState
	err  error
}

// watch publishes a volume of the things and has it read until the test ends.
func (n *node) watch(things ...*thing) *observer {
	n.t.Helper()
	sources := ""
	for _, o := range things {
		sources += o.source()
	}
	w := &observer{node: n, volume: n.volume(map[string]string{"sources": sources}), things: things, done: make(chan struct{})}
	n.publishes(w.volume, soon)
	w.seen = make(map[string]objectState)
	w.ended.Go(w.run)
	n.t.Cleanup(w.stop)
	return w
}

// stop ends the reading, and fails the test where that was too little to mean anything;
// calling it again does nothing.
func (w *observer) stop() {
	select {
	case <-w.done:
		return
	default:
		close(w.done)
	}
	w.ended.Wait()
	if err := w.reads.check(); err != nil && !w.node.t.Failed() {
		w.node.t.Error(err)
	}
}

func (w *observer) run() {
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-w.done:
			return
		case <-tick.C:
		}
		begin := time.Now()
		if err := w.reads.count(begin, w.read()); err != nil {
			w.mu.Lock()
			w.err = err
			w.mu.Unlock()
			return
		}
	}
}

// read reads one generation.
func (w *observer) read() error {
	fd, err := unix.Open(filepath.Join(w.node.Target(w.volume), "..data"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return gone("open ..data", err)
	}
	defer unix.Close(fd)
	now := make(map[string]objectState)
	for _, o := range w.things {
		for _, key := range o.keys() {
			data, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d/%s", fd, key))
			if err != nil {
				return gone("read a generation", err)
			}
			s, err := parseState(string(data))
			if err != nil {
				return err
			}
			if other, ok := now[o.name]; ok && other != s {
				return fmt.Errorf("one generation of %s holds %s and %s", o.name, other, s)
			}
			now[o.name] = s
		}
	}
	return w.note(now)
}

func (w *observer) note(now map[string]objectState) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, s := range now {
		if s.before(w.seen[name]) {
			return fmt.Errorf("%s went back from %s to %s", name, w.seen[name], s)
		}
	}
	w.seen = now
	return nil
}

// check returns what must not have been.
func (w *observer) check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// current returns nil if the volume shows the latest state of the things that exist.
func (w *observer) current() error {
	if err := w.check(); err != nil {
		return err
	}
	w.mu.Lock()
	seen := maps.Clone(w.seen)
	w.mu.Unlock()
	var errs []error
	for _, o := range w.things {
		if o.exists && seen[o.name] != o.state {
			errs = append(errs, fmt.Errorf("%s %s shows as %s, want %s", o.kind, o.name, seen[o.name], o.state))
		}
	}
	return errors.Join(errs...)
}

// converges waits until all volumes are current, and returns how long that took.
func converges(t *testing.T, within time.Duration, observers ...*observer) time.Duration {
	t.Helper()
	begin := time.Now()
	harness.Eventually(t, within, func() error {
		var errs []error
		for _, w := range observers {
			errs = append(errs, w.current())
		}
		return errors.Join(errs...)
	})
	return time.Since(begin)
}
