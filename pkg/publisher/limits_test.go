package publisher

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// The units of a volume's memory; see package room.
const (
	pageSize  = 4096
	inodeSize = 1024
)

// pages returns a value that needs n pages.
func pages(n int) string { return strings.Repeat("x", n*pageSize) }

// taken returns what a volume counts whose files need so many pages, without directories or long names. A file needs an inode and its link
// another. Three are for the root, the generation and ..data.
func taken(pages, files int) int64 { return int64(pages)*pageSize + int64(3+2*files)*inodeSize }

func TestAVolumeOverItsLimit(t *testing.T) {
	many := volume.Payload{}
	for i := range 3000 {
		many.Files = append(many.Files, volume.File{Path: fmt.Sprintf("f%d", i)})
	}
	for _, test := range []struct {
		name string
		tree volume.Payload
		text string
	}{{
		name: "bytes",
		tree: volume.Payload{Files: []volume.File{{Path: "a", Data: make([]byte, mebibyte)}, {Path: "b", Data: []byte("1")}}},
		text: "the files take 1052672 bytes of memory, more than the 1048576 bytes that a volume may have (--max-volume-size)",
	}, {
		name: "inodes",
		tree: many,
		text: "the files take 6002 inodes, more than the 2048 that a volume may have (they follow --max-volume-size)",
	}} {
		t.Run(test.name, func(t *testing.T) {
			e := newEnv(t, nil)
			size := writer.Measure(&test.tree)
			if err := e.p.limits.CheckTree(size.Bytes, size.Inodes); err == nil || err.Error() != test.text {
				t.Errorf("got %v, want %s", err, test.text)
			}
			if e.used() != 0 {
				t.Errorf("%d bytes counted", e.used())
			}
		})
	}
}

// An update may not bring more files than a new volume may have.
func TestAnUpdateWithTooManyFiles(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		var pairs []string
		for i := range e.p.limits.Files + 1 {
			pairs = append(pairs, fmt.Sprint("f", i), "")
		}
		e.objects.put(configMap("app"), pairs...)
		e.settle()
		e.wantProblem(r, "Too many: the volume may show 256 keys")
		e.wantFiles(r, "a", "1")
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
		if e.used() != taken(1, 1) {
			t.Errorf("%d bytes counted", e.used())
		}
		if n := len(e.writes.times()); n > 0 {
			t.Errorf("%d writes", n)
		}
		// Without a change no retry can succeed, so only the resync retries.
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
		e.wantReason(e.p.Publish(e.ctx, third), failure.ReasonNodeFull,
			"the files and their inodes take 827392 bytes of memory, the node's other volumes 1648640, together more than 2097152 (--max-total-size)")
		if e.used() != 2*taken(200, 1) {
			t.Errorf("%d bytes counted", e.used())
		}

		// An update counts instead of what it replaces.
		e.objects.put(configMap("large"), "a", pages(250))
		after(retryMax) // one may have to wait for what the other one supersedes
		e.settle()
		e.wantFiles(first, "a", pages(250))
		e.wantFiles(second, "a", pages(250))

		// One of two updates finds the node full. It is retried until there is room.
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
		e.rest()
		if e.used() != taken(250, 1)+taken(100, 1) {
			t.Errorf("%d bytes counted", e.used())
		}
		e.unpublish(second)
		e.unpublish(small)
		e.wantNothing()
	})
}

// TestAPodsShare: one pod may fill an eighth of the node. To make room for a new volume, the pod's own volumes drop what they keep for
// readers, and other pods' volumes don't.
func TestAPodsShare(t *testing.T) {
	inStoppedBubble(t, func(o *Options) { o.MaxTotalSize = 16 * mebibyte }, func(e *env) {
		e.run()
		e.objects.put(configMap("app"), "a", pages(100))
		e.objects.put(configMap("one"), "a", "1")
		e.objects.put(configMap("large"), "a", pages(200))
		other := e.request("other", "configMap", "one")
		e.publish(other)
		all := e.inOnePod("greedy", 22)
		for _, r := range all[:5] {
			e.publish(r)
		}
		e.wantReason(e.p.Publish(e.ctx, all[5]), failure.ReasonNodeFull,
			"the files and their inodes take 417792 bytes of memory, the pod's other volumes 2073600, together more than 2097152 (a pod's share: an eighth of --max-total-size, but at least --max-volume-size)")
		e.publish(e.request("tenant", "configMap", "large"))
		e.publish(e.request("fits")) // other pods are not affected

		// The readers of another pod have their second.
		e.objects.put(configMap("one"), "a", "2")
		e.settle()
		e.unpublish(all[4])
		mine := all[0]
		e.objects.put(configMap("app"), "a", pages(101)) // two generations each
		e.settle()
		last := all[6]
		last.Attributes = map[string]string{"configMap": "one"}
		e.publish(last)
		if n := e.generations(other); n != 2 {
			t.Errorf("the other pod has %d generations", n)
		}
		e.wantFiles(mine, "a", pages(101))
		if lines := e.logs.With("Can't make room"); len(lines) > 0 {
			t.Errorf("the log has %q", lines)
		}
	})
}

// A volume may fill the pod's share or the node to the last byte.
func TestTheLastByteFits(t *testing.T) {
	inStoppedBubble(t, func(o *Options) { o.MaxTotalSize, o.MaxVolumeSize = 2*mebibyte, mebibyte }, func(e *env) {
		e.run()
		e.objects.put(configMap("app"), "a", pages(150))
		both := e.inOnePod("full", 2)
		e.publish(both[0])
		e.publish(e.request("other"))
		left := map[string]int64{
			both[1].Target:            mebibyte - taken(150, 1),
			e.request("third").Target: 2*mebibyte - 2*taken(150, 1),
		}
		for target, room := range left {
			e.p.table.mu.Lock()
			added := e.p.table.add(target, target, target, false)
			e.p.table.mu.Unlock()
			if err := added.room.CheckMemory(room); err != nil {
				t.Errorf("%s: %d bytes: %v", target, room, err)
			}
			if added.room.CheckMemory(room+1) == nil {
				t.Errorf("%s: %d bytes fit", target, room+1)
			}
		}
	})
}

// Empty files also use inodes of the kernel's memory: in volumes that are being published, updated, or left by an earlier process.
func TestEmptyFilesFillTheNode(t *testing.T) {
	inStoppedBubble(t, func(o *Options) { o.MaxTotalSize = mebibyte }, func(e *env) {
		e.run()
		const files = 120
		keys := func(n int) (pairs []string) {
			for i := range n {
				pairs = append(pairs, fmt.Sprintf("key%d", i), "")
			}
			return pairs
		}
		e.objects.put(configMap("app"), keys(files)...)
		e.objects.put(configMap("small"), "a", "")
		const fit = 4
		requests := make([]binding.Request, 0, fit)
		for i := range fit {
			r := e.request(fmt.Sprintf("v%d", i))
			e.publish(r)
			requests = append(requests, r)
		}
		if want := fit * taken(0, files); e.used() != want {
			t.Errorf("%d bytes counted, want %d", e.used(), want)
		}
		full := e.request("full")
		e.wantReason(e.p.Publish(e.ctx, full), failure.ReasonNodeFull,
			"the files and their inodes take 288768 bytes of memory, the node's other volumes 995328, together more than 1048576 (--max-total-size)")

		small := e.request("small", "configMap", "small")
		e.publish(small)
		e.objects.put(configMap("small"), keys(files)...)
		e.settle()
		e.wantProblem(small, "together more than")
		e.wantFiles(small, "a", "")

		e.restartUnread()
		if want := fit*taken(0, files) + taken(0, 1); e.used() != want {
			t.Errorf("%d bytes counted after a restart, want %d", e.used(), want)
		}
		e.wantReason(e.p.Publish(e.ctx, full), failure.ReasonNodeFull, "")
		e.unpublish(requests[0])
		e.publish(full)
		for _, r := range append(requests[1:], small, full) {
			e.unpublish(r)
		}
		e.wantNothing()
	})
}

// The count follows what is written, over updates, failures and restarts, and ends at zero.
func TestTheCountIsExact(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.request("v1", "sources", "[{configMap: {name: app}}, {secret: {name: db, optional: true}}]")
		want := func(bytes int64) {
			t.Helper()
			e.settle()
			e.rest()
			if got := e.used(); got != bytes {
				t.Errorf("%d bytes counted, want %d", got, bytes)
			}
		}
		e.objects.put(configMap("app"), "a", "1", "b", pages(1)+"x", "c", "")
		e.publish(r)
		want(taken(3, 3))
		e.objects.put(secret("db"), "password", "x")
		want(taken(4, 4))
		e.restart()
		want(taken(4, 4))
		e.objects.put(configMap("app"), "a", "1")
		want(taken(2, 2))

		e.writes.set(func() error { return errFault }, nil)
		e.objects.put(configMap("app"), "a", pages(10))
		want(taken(2, 2))
		e.writes.set(nil, nil)
		after(retryMax)
		want(taken(11, 2))

		e.unpublish(r)
		e.wantNothing()
	})
}

// Each volume of a pod keeps a list of what it shows, so the number of volumes and of items is limited.
func TestAPodsVolumesAreBounded(t *testing.T) {
	inIdentities(t, func(e *env) {
		volumes := e.volumesOf("v", volume.MaxPodVolumes+1)
		for _, r := range volumes[:volume.MaxPodVolumes] {
			e.publish(r)
		}
		last := volumes[volume.MaxPodVolumes]
		e.wantReason(e.p.Publish(e.ctx, last), failure.ReasonInvalid, "the pod has 129 volumes of this driver, more than 128: show several objects in one volume")
		e.unpublish(volumes[0])
		e.publish(last)

		items := make([]volume.Item, 257)
		for i := range items {
			items[i] = volume.Item{Key: "a", Path: fmt.Sprint("p", i)}
		}
		e.pods.show("native", volume.Source{Projection: &volume.Projection{Ref: configMap("app"), Items: items}, Field: "spec.volumes[1].configMap"})
		e.wantReason(e.p.Publish(e.ctx, e.volumesOf("other", 1)[0]), failure.ReasonTooLarge,
			"the volume has 257 items, more than 256: one for each page of 4096 bytes of --max-volume-size")
	})
}

func TestAVolumeMayTakeExactlyItsLimit(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", pages(256))
		r := e.request("v1")
		e.publish(r)
		if e.used() != taken(256, 1) {
			t.Errorf("%d bytes counted", e.used())
		}
		e.unpublish(r)
		e.wantNothing()
	})
}

// When the node is full, the volumes are measured at once. Files that readers have closed no longer count, so the kubelet's next try
// succeeds.
func TestAFullNodeIsMeasured(t *testing.T) {
	inStoppedBubble(t, func(o *Options) { o.MaxTotalSize = mebibyte }, func(e *env) {
		e.run()
		e.objects.put(configMap("app"), "a", "1")
		first, second := e.request("v1"), e.request("v2")
		e.publish(first)
		e.mounts.hold(first.Target, mebibyte)
		e.objects.put(configMap("app"), "a", "2")
		e.rest()
		e.mounts.hold(first.Target, 0)
		e.wantReason(e.p.Publish(e.ctx, second), failure.ReasonNodeFull, "")
		synctest.Wait()
		e.publish(second)
	})
}

// An update that takes as much as before is accepted, also when the limits were lowered since.
func TestAnUpdateAfterTheLimitWasLowered(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", pages(10))
		r := e.request("v1")
		e.publish(r)
		e.opts.MaxVolumeSize = 8 * pageSize
		e.restart()
		e.settle()
		e.objects.put(configMap("app"), "a", strings.ToUpper(pages(10)))
		e.settle()
		e.wantFiles(r, "a", strings.ToUpper(pages(10)))
		e.objects.put(configMap("app"), "a", pages(10)) // also once this process has written the files
		e.settle()
		e.wantFiles(r, "a", pages(10))
		e.objects.put(configMap("app"), "a", pages(11))
		e.settle()
		e.wantProblem(r, "more than the 32768 bytes")
	})
}

// TestAFullNodeIsNoBusyLoop: volumes that find no room make others measure, and are not retried more often for that.
func TestAFullNodeIsNoBusyLoop(t *testing.T) {
	inStoppedBubble(t, func(o *Options) { o.MaxTotalSize = 2 * mebibyte }, func(e *env) {
		e.run()
		e.objects.put(configMap("app"), "a", pages(10))
		first, second := e.request("v1"), e.request("v2")
		e.publish(first)
		e.publish(second)
		hold := func(bytes int64) {
			e.mounts.hold(first.Target, bytes)
			e.mounts.hold(second.Target, bytes)
		}
		hold(mebibyte)
		e.objects.put(configMap("app"), "a", pages(9))
		e.rest()
		var measured atomic.Int32
		e.mounts.on("Usage", func() error {
			if measured.Add(1) == 1000 { // a busy loop would never end on fake time
				hold(0)
			}
			return nil
		})
		e.objects.put(configMap("app"), "a", pages(252))
		after(30 * time.Second)
		e.settle()
		e.wantProblem(first, "together more than")
		if n := measured.Load(); n > 100 {
			t.Errorf("measured %d times in 30 s", n)
		}
		hold(0)
		after(2 * retryMax)
		e.settle()
		e.wantFiles(first, "a", pages(252))
		e.wantFiles(second, "a", pages(252))
	})
}
