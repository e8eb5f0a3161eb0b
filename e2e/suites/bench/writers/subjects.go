package writers

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	upstream "k8s.io/kubernetes/pkg/volume/util"

	refvol "github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

const (
	fileMode = 0o644
	dirMode  = 0o755
)

// contents is what a volume is to show, by key.
type contents map[string][]byte

// newContents returns n keys, each with a content of its own.
func newContents(n int) contents {
	c := make(contents, n)
	for i := range n {
		c[keyName(i)] = bytes.Repeat(fmt.Appendf(nil, "%09d\n", i), keyBytes/10)
	}
	return c
}

func keyName(i int) string { return fmt.Sprintf("key-%05d", i) }

// copy returns the same contents in new memory.
func (c contents) copy() contents {
	next := make(contents, len(c))
	for key, data := range c {
		next[key] = bytes.Clone(data)
	}
	return next
}

// change gives one key a content that it did not have, and a different key each round.
func (c contents) change(round int) {
	copy(c[keyName(round*7919%len(c))], fmt.Sprintf("round %d", round))
}

// subject is a writer that is measured.
type subject interface {
	// prepare returns the write of keys, whose duration counts.
	prepare(ctx context.Context, keys contents) func() error
}

// refvolWriter is the writer of this project.
type refvolWriter struct {
	root *os.Root
	*writer.Writer
	// shown says that there is a generation, which a change supersedes.
	shown bool
}

func newRefvol(root *os.Root) subject {
	return &refvolWriter{root: root, Writer: writer.New(writer.Options{})}
}

func (w *refvolWriter) prepare(ctx context.Context, keys contents) func() error {
	tree := &refvol.Payload{DirMode: dirMode, UID: os.Geteuid(), GID: os.Getegid()}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		tree.Files = append(tree.Files, refvol.File{Path: key, Data: keys[key], Mode: fileMode})
	}
	return func() error {
		result, err := w.Write(ctx, w.root, tree)
		if err != nil {
			return err
		}
		// The publisher prunes a volume that it has changed.
		if result.Changed && w.shown {
			_, err = writer.Prune(w.root, time.Now())
		}
		w.shown = true
		return err
	}
}

// upstreamWriter is the kubelet's.
type upstreamWriter struct{ *upstream.AtomicWriter }

func newUpstream(dir string) (subject, error) {
	w, err := upstream.NewAtomicWriter(dir, "bench")
	if err != nil {
		return nil, fmt.Errorf("upstream's writer: %w", err)
	}
	return upstreamWriter{w}, nil
}

func (w upstreamWriter) prepare(_ context.Context, keys contents) func() error {
	payload := make(map[string]upstream.FileProjection, len(keys))
	for key, data := range keys {
		payload[key] = upstream.FileProjection{Data: data, Mode: fileMode}
	}
	return func() error { return w.Write(payload, nil) }
}
