package publisher

import (
	"fmt"
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// size returns a value that takes so many pages.
func pages(n int) string { return strings.Repeat("x", n*pageSize) }

func TestTheFileSystemHoldsTwoGenerations(t *testing.T) {
	for _, size := range []int64{1, pageSize, mebibyte, 16 * mebibyte, 1 << 40} {
		l := limitsFor(size)
		const root = 1
		if l.bytes != size || l.mountBytes < 2*l.bytes || l.mountInodes < 2*l.inodes+root {
			t.Errorf("%d: %+v", size, l)
		}
		// As many files of a page as may be must not fail for want of inodes: each
		// takes one, and its link another.
		if files := size / pageSize; l.inodes < 2*files+2 {
			t.Errorf("%d: %d inodes for %d files", size, l.inodes, files)
		}
	}
}

func TestAVolumeOverItsLimit(t *testing.T) {
	many := volume.Tree{}
	for i := range 3000 {
		many.Files = append(many.Files, volume.File{Path: fmt.Sprintf("f%d", i)})
	}
	for _, test := range []struct {
		name string
		tree volume.Tree
		text string
	}{{
		name: "bytes",
		tree: volume.Tree{Files: []volume.File{{Path: "a", Data: make([]byte, mebibyte)}, {Path: "b", Data: []byte("1")}}},
		text: "the files take 1052672 bytes of memory, more than the 1048576 bytes that a volume may have (--max-volume-size)",
	}, {
		name: "inodes",
		tree: many,
		text: "the files take 6002 inodes, more than the 2048 that a volume may have (they follow --max-volume-size)",
	}} {
		t.Run(test.name, func(t *testing.T) {
			e := newEnv(t, nil)
			v := &published{p: e.p, request: e.request("v1")}
			_, err := v.reserve(writer.Measure(&test.tree), writer.Footprint{})
			e.wantReason(err, ReasonTooLarge, test.text)
			if e.used() != 0 {
				t.Errorf("%d bytes counted", e.used())
			}
		})
	}
}

func TestAVolumeMayTakeExactlyItsLimit(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", pages(256))
		r := e.request("v1")
		e.publish(r)
		if e.used() != mebibyte {
			t.Errorf("%d bytes counted", e.used())
		}
		e.unpublish(r)
		e.wantNothing()
	})
}

func TestAnUpdateOverTheLimitKeepsTheFiles(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.writes.times()
		e.objects.put(configMap("app"), "a", pages(257))
		after(2 * testResync)
		e.wantFiles(r, "a", "1")
		e.wantProblem(r, "more than the 1048576 bytes")
		if e.used() != pageSize {
			t.Errorf("%d bytes counted", e.used())
		}
		if n := len(e.writes.times()); n > 0 {
			t.Errorf("%d writes", n)
		}
		// Without a change no retry can succeed, so there is but the resync.
		if n := e.mounts.count("Reopen"); n > 3 {
			t.Errorf("it was tried %d times", n)
		}
		e.publish(r)
		e.objects.put(configMap("app"), "a", "3")
		e.settle()
		e.wantFiles(r, "a", "3")
		e.wantProblem(r, "")
	})
}

func TestTheNodesTotal(t *testing.T) {
	inStoppedBubble(t, func(o *Options) { o.MaxTotalSize = 2 * mebibyte }, func(e *env) {
		e.run()
		e.objects.put(configMap("large"), "a", pages(200))
		first, second, third := e.request("v1", "configMap", "large"), e.request("v2", "configMap", "large"), e.request("v3", "configMap", "large")
		e.publish(first)
		e.publish(second)
		e.wantReason(e.p.Publish(e.ctx, third), ReasonNodeFull,
			"the files take 819200 bytes of memory, the node's other volumes 1638400, together more than 2097152 (--max-total-size)")
		if e.used() != 400*pageSize {
			t.Errorf("%d bytes counted", e.used())
		}

		// An update counts in place of what it replaces.
		e.objects.put(configMap("large"), "a", pages(250))
		e.settle()
		e.wantFiles(first, "a", pages(250))
		e.wantFiles(second, "a", pages(250))

		// One of two updates finds the node full; it is tried until there is room.
		e.objects.put(configMap("small"), "a", "1")
		small := e.request("v4", "configMap", "small")
		e.publish(small)
		e.objects.put(configMap("small"), "a", pages(100))
		e.settle()
		e.wantProblem(small, "together more than")
		e.wantFiles(small, "a", "1")
		e.unpublish(first)
		after(retryMax)
		e.wantFiles(small, "a", pages(100))
		e.wantProblem(small, "")
		if e.used() != 350*pageSize {
			t.Errorf("%d bytes counted", e.used())
		}
		e.unpublish(second)
		e.unpublish(small)
		e.wantNothing()
	})
}

// The count follows what is written, over updates, failures and restarts, and ends
// at nothing.
func TestTheCountIsExact(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.request("v1", "sources", "[{configMap: {name: app}}, {secret: {name: db, optional: true}}]")
		want := func(bytes int64) {
			t.Helper()
			e.settle()
			if got := e.used(); got != bytes {
				t.Errorf("%d bytes counted, want %d", got, bytes)
			}
		}
		e.objects.put(configMap("app"), "a", "1", "b", pages(1)+"x", "c", "")
		e.publish(r)
		want(3 * pageSize)
		e.objects.put(secret("db"), "password", "x")
		want(4 * pageSize)
		e.restart()
		want(4 * pageSize)
		e.objects.put(configMap("app"), "a", "1")
		want(2 * pageSize)

		e.writes.set(func() error { return errFault }, nil)
		e.objects.put(configMap("app"), "a", pages(10))
		want(2 * pageSize)
		e.writes.set(nil, nil)
		after(retryMax)
		want(11 * pageSize)

		e.unpublish(r)
		e.wantNothing()
	})
}

// Long names take a page each for their links; what is counted must include that.
func TestWhatIsCountedIsTheWritersMeasure(t *testing.T) {
	e := newEnv(t, nil)
	tree := &volume.Tree{Files: []volume.File{
		{Path: strings.Repeat("n", 200), Data: []byte("x")},
		{Path: "conf/deep/a", Data: []byte(pages(2))},
	}}
	v := &published{p: e.p, request: e.request("v1")}
	e.p.volumes["v1"] = v
	size := writer.Measure(tree)
	undo, err := v.reserve(size, writer.Footprint{})
	if err != nil {
		t.Fatal(err)
	}
	if size.Bytes != 4*pageSize || e.used() != size.Bytes {
		t.Errorf("counted %d, want %d", e.used(), size.Bytes)
	}
	undo()
	if e.used() != 0 {
		t.Errorf("%d bytes counted after undo", e.used())
	}
	delete(e.p.volumes, "v1")
	if _, err := v.reserve(size, writer.Footprint{}); err != nil || e.used() != 0 {
		t.Errorf("a volume that is gone was counted: %d, %v", e.used(), err)
	}
}

// A node whose limit was lowered, or that was overcommitted otherwise, still takes
// changes that need no more than what they replace.
func TestWhatShrinksIsNeverRefused(t *testing.T) {
	inBubble(t, func(e *env) {
		var requests []Request
		for _, id := range []string{"v1", "v2"} {
			e.objects.put(configMap(id), "a", pages(100))
			requests = append(requests, e.request(id, "configMap", id))
			e.publish(requests[len(requests)-1])
		}
		e.opts.MaxVolumeSize, e.opts.MaxTotalSize = 150*pageSize, 150*pageSize
		e.restart()
		e.settle()
		e.objects.put(configMap("v1"), "a", pages(60))
		e.settle()
		e.wantFiles(requests[0], "a", pages(60))
		e.wantProblem(requests[0], "")
		e.objects.put(configMap("v1"), "a", pages(61))
		e.settle()
		e.wantFiles(requests[0], "a", pages(60))
		e.wantProblem(requests[0], "--max-total-size")
	})
}
