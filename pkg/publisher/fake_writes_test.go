package publisher

import (
	"context"
	"errors"
	"os"

	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// errFault is the error of an injected fault.
var errFault = errors.New("injected fault")

// faultyWrites decides which writes of a test fail. It is safe for concurrent use.
type faultyWrites struct {
	guard
	// fault is called before each write, late after it.
	fault, late func() error
	// hangs has, by the content of a file, what its write waits for. hanging counts the writes that wait.
	hangs   map[string]chan struct{}
	hanging int
}

func (f *faultyWrites) set(fault, late func() error) {
	f.locked(func() { f.fault, f.late = fault, late })
}

// hangAt makes each write of a file with this content hang, until the returned function is called.
func (f *faultyWrites) hangAt(content string) (release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hangs == nil {
		f.hangs = map[string]chan struct{}{}
	}
	released := make(chan struct{})
	f.hangs[content] = released
	return func() { close(released) }
}

// hang waits if the tree has a file whose write hangs.
func (f *faultyWrites) hang(tree *volume.Payload) {
	for i := range tree.Files {
		f.mu.Lock()
		released := f.hangs[string(tree.Files[i].Data)]
		if released == nil {
			f.mu.Unlock()
			continue
		}
		f.hanging++
		f.mu.Unlock()
		<-released
		f.mu.Lock()
		f.hanging--
		f.mu.Unlock()
	}
}

// howManyHang returns how many writes hang.
func (f *faultyWrites) howManyHang() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hanging
}

func (f *faultyWrites) begin() (fault, late func() error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fault, f.late
}

// testWriter is the real writer, but leaves owners unchanged, so that the tests need no root.
type testWriter struct {
	Writer
	faults *faultyWrites
}

func (w *testWriter) Write(ctx context.Context, dir *os.Root, tree *volume.Payload) (writer.Result, error) {
	w.faults.hang(tree)
	fault, late := w.faults.begin()
	if fault != nil {
		if err := fault(); err != nil {
			return writer.Result{}, err
		}
	}
	unowned := *tree
	unowned.UID, unowned.GID = volume.NoOwner, volume.NoOwner
	result, err := w.Writer.Write(ctx, dir, &unowned)
	if err == nil && late != nil {
		err = late()
	}
	return result, err
}

func (w *testWriter) Compare(ctx context.Context, dir *os.Root, tree *volume.Payload) (writer.Comparison, error) {
	unowned := *tree
	unowned.UID, unowned.GID = volume.NoOwner, volume.NoOwner
	return w.Writer.Compare(ctx, dir, &unowned)
}
