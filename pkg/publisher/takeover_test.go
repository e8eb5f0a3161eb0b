package publisher

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/refvol/refvol/pkg/manager"
)

// editRecord changes a volume's record on disk.
func (e *env) editRecord(id string, change func(*record)) {
	e.Helper()
	r := e.record(id)
	change(r)
	text, err := json.Marshal(r)
	if err != nil {
		e.Fatal(err)
	}
	if err := os.WriteFile(e.recordPath(id), text, 0o600); err != nil {
		e.Fatal(err)
	}
}

// What a volume takes counts from the moment at which this process has it, also while its objects
// are out of reach, so that nothing can write it.
func TestAVolumeTakenOverCounts(t *testing.T) {
	const size = 5
	for _, test := range []struct {
		name string
		// then restarts the publisher, with a state directory that tells something else.
		then func(e *env, r Request)
		want int64
	}{
		{"with its record", func(e *env, _ Request) { e.restart() }, size * pageSize},
		{"without a record", func(e *env, r Request) {
			e.loseRecords()
			e.publish(r)
		}, size * pageSize},
		{"without a record, and again", func(e *env, r Request) {
			e.loseRecords()
			e.publish(r)
			e.restart()
		}, size * pageSize},
		{"by the record of an earlier version, which has 0", func(e *env, _ Request) {
			e.editRecord("v1", func(r *record) { r.Size = 0 })
			e.restart()
		}, size * pageSize},
		{"by a record that claims more than there is", func(e *env, _ Request) {
			e.editRecord("v1", func(r *record) { r.Size = 1 << 60 })
			e.restart()
		}, size * pageSize},
		{"with a lower limit", func(e *env, _ Request) {
			e.opts.MaxVolumeSize = pageSize
			e.restart()
		}, size * pageSize},
		{"with the generation before, which goes soon", func(e *env, _ Request) {
			e.objects.failWith(configMap("app"), nil)
			e.objects.put(configMap("app"), "a", pages(size)+"x")
			e.settle()
			e.objects.failWith(configMap("app"), manager.ErrNotSynced)
			e.restart()
		}, (size + 1) * pageSize},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", pages(size))
				r := e.request("v1")
				e.publish(r)
				e.objects.failWith(configMap("app"), manager.ErrNotSynced)
				test.then(e, r)
				e.settle()
				if e.used() != test.want {
					t.Errorf("%d bytes counted, want %d", e.used(), test.want)
				}
				e.objects.failWith(configMap("app"), nil)
				e.objects.put(configMap("app"), "a", "")
				e.settle()
				if e.used() != 0 {
					t.Errorf("%d bytes counted once it shows an empty file", e.used())
				}
				e.unpublish(r)
				e.wantNothing()
			})
		})
	}
}

// A node that is full of volumes that were taken over takes no other.
func TestVolumesTakenOverFillTheNode(t *testing.T) {
	inStoppedBubble(t, func(o *Options) { o.MaxTotalSize = mebibyte }, func(e *env) {
		e.run()
		e.objects.put(configMap("app"), "a", pages(200))
		e.objects.put(configMap("other"), "a", pages(100))
		r := e.request("v1")
		e.publish(r)
		e.objects.failWith(configMap("app"), manager.ErrNotSynced)
		e.loseRecords()
		e.publish(r)
		e.wantReason(e.p.Publish(e.ctx, e.request("v2", "configMap", "other")), ReasonNodeFull,
			"the files take 409600 bytes of memory, the node's other volumes 819200, together more than 1048576 (--max-total-size)")
	})
}
