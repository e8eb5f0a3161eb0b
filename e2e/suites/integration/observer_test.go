package integration

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// thing is an object that is written and deleted, each time it comes back at its next generation. It belongs to one
// goroutine.
type thing struct {
	*object
	node       *node
	generation int
	exists     bool
}

func (n *node) newThing(kind, name string) *thing {
	n.t.Helper()
	o := &thing{object: &object{kind: kind, name: name, padding: n.canary()}, node: n}
	o.write()
	return o
}

// write changes the object, or creates it.
func (o *thing) write() {
	o.node.t.Helper()
	o.exists = true
	o.generation++
	o.node.putObject(o.kind, o.name, o.data(o.generation))
}

func (o *thing) delete() {
	o.node.t.Helper()
	if o.exists {
		o.exists = false
		o.node.removeObject(o.kind, o.name)
	}
}

// manifest is the file that tells of the thing's generation, and what it holds now.
func (o *thing) manifest() (path, content string) {
	key := o.key("manifest")
	return o.path(key), o.data(o.generation)[key]
}

// observer is a volume that a witness reads until stop.
type observer struct {
	node   *node
	volume *harness.Volume
	things []*thing
	reads  reads
	// stop ends the reading, and fails the test where a reader saw what must not be, or too little to mean anything; calling
	// it again does nothing.
	stop func()
}

// watch publishes a volume of the things and has it read until the test ends.
func (n *node) watch(things ...*thing) *observer {
	n.t.Helper()
	s := &shape{strategy: "Atomic"}
	for _, o := range things {
		s.objects = append(s.objects, o.object)
	}
	w := &observer{node: n, volume: n.volume(s.attributes()), things: things}
	n.publishes(w.volume, soon)
	r := startReading(n.t, harness.Scaled(25*time.Millisecond, 5*time.Millisecond), newWitness(s, n.Target(w.volume), false, &w.reads))
	w.stop = sync.OnceFunc(func() {
		if err := r.finish(); err != nil {
			n.t.Errorf("a reader saw: %v", err)
		} else if err := w.reads.check(); err != nil && !n.t.Failed() {
			n.t.Error(err)
		}
	})
	n.t.Cleanup(w.stop)
	return w
}

// current returns nil if one generation of the volume shows the latest state of the things that exist.
func (w *observer) current() error {
	dir, err := unix.Open(filepath.Join(w.node.Target(w.volume), "..data"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	var errs []error
	for _, o := range w.things {
		path, want := o.manifest()
		if got, err := readAt(dir, path); o.exists && (err != nil || got != want) {
			errs = append(errs, fmt.Errorf("%s %s shows %q, %w, want %q", o.kind, o.name, got, cmpErr(err), want))
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
