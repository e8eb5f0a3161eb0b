package publisher

import (
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
)

// A volume's memory counts from the moment at which this process finds it, even if its pod or its objects cannot be read, so that nothing
// can write it.
func TestAVolumeTakenOverCounts(t *testing.T) {
	const size = 5
	for _, test := range []struct {
		name string
		// then restarts the publisher.
		then func(e *env, r binding.Request)
		want int64
	}{
		{"by its pod's spec", func(e *env, _ binding.Request) { e.restart() }, taken(size, 1)},
		{"not yet", func(e *env, _ binding.Request) { e.restartUnread() }, taken(size, 1)},
		{"by a publish", func(e *env, r binding.Request) {
			e.restartUnread()
			e.publish(r)
		}, taken(size, 1)},
		{"by a publish, and again", func(e *env, r binding.Request) {
			e.restartUnread()
			e.publish(r)
			e.restart()
		}, taken(size, 1)},
		{"when it could be read at the second try", func(e *env, _ binding.Request) {
			e.mounts.failAt("Open", errFault)
			e.restart()
			e.mounts.failAt("Open", nil)
			after(10 * time.Second)
		}, taken(size, 1)},
		{"with a lower limit", func(e *env, _ binding.Request) {
			e.opts.MaxVolumeSize = pageSize
			e.restart()
		}, taken(size, 1)},
		{"with the generation before, which goes soon", func(e *env, _ binding.Request) {
			e.objects.failWith(configMap("app"), nil)
			e.objects.put(configMap("app"), "a", pages(size)+"x")
			e.settle()
			e.objects.failWith(configMap("app"), manager.ErrNotSynced)
			e.restart()
		}, taken(size+1, 1)},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", pages(size))
				r := e.request("v1")
				e.publish(r)
				e.objects.failWith(configMap("app"), manager.ErrNotSynced)
				test.then(e, r)
				e.rest()
				if e.used() != test.want {
					t.Errorf("%d bytes counted, want %d", e.used(), test.want)
				}
				e.publish(r)
				e.objects.failWith(configMap("app"), nil)
				e.objects.put(configMap("app"), "a", "")
				e.rest()
				if e.used() != taken(0, 1) {
					t.Errorf("%d bytes counted once it shows an empty file", e.used())
				}
				e.unpublish(r)
				e.wantNothing()
			})
		})
	}
}

// A node that is full of volumes of an earlier process accepts no other.
func TestRestoredVolumesFillTheNode(t *testing.T) {
	inStoppedBubble(t, func(o *Options) { o.MaxTotalSize = mebibyte }, func(e *env) {
		e.run()
		e.objects.put(configMap("app"), "a", pages(200))
		e.objects.put(configMap("other"), "a", pages(100))
		r := e.request("v1")
		e.publish(r)
		e.restartUnread()
		e.wantReason(e.p.Publish(e.ctx, e.request("v2", "configMap", "other")), failure.ReasonNodeFull,
			"the files and their inodes take 417792 bytes of memory, the node's other volumes 824320, together more than 1048576 (--max-total-size)")
	})
}
