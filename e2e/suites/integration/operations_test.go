package integration

import (
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/supervise"
)

// operation does something with a volume while the plugin may be killed at any call.
type operation struct {
	name string
	do   func(*killing, *harness.Volume) error
	// published says that the volume is before, and stays that it is afterwards.
	published, stays bool
}

func operations() []operation {
	publish := func(k *killing, v *harness.Volume) error { return k.Publish(k.t.Context(), v) }
	change := func(change func(*killing)) func(*killing, *harness.Volume) error {
		return func(k *killing, v *harness.Volume) error {
			change(k)
			k.untilSettledOrKilled(v)
			return nil
		}
	}
	unpublish := func(k *killing, v *harness.Volume) error { return k.Unpublish(k.t.Context(), v) }
	return []operation{
		{name: "publish", do: publish, stays: true},
		// The pod is deleted while the plugin is down: the kubelet will not publish again.
		{name: "first publish", do: publish},
		{name: "update", do: change((*killing).change), published: true, stays: true},
		{name: "touch", do: change((*killing).touch), published: true, stays: true},
		{name: "unpublish", do: unpublish, published: true},
	}
}

// run does the operation on a new volume while the plugin may be killed, restarts and mends. It returns the calls that
// the operation made, and whether the plugin was killed.
func (o operation) run(k *killing, decide supervise.Decide) ([]supervise.Call, bool) {
	k.t.Helper()
	v := k.newVolume()
	if o.published {
		k.mustPublish(v)
		k.becomesCurrent(v)
	}
	finish := k.watch(v, !o.stays)
	k.Arm(decide)
	err := o.do(k, v)
	calls, killed := k.Disarm()
	if err != nil && !killed {
		k.t.Fatalf("the plugin has not been killed, and said: %v", err)
	}
	if killed {
		k.crash()
	}
	if o.stays {
		if o.published {
			k.becomesCurrent(v)
		}
		k.mustPublish(v) // as the kubelet may at any time
		k.prove(v)
		finish()
		k.end(v)
		return calls, killed
	}
	if killed || !o.published {
		k.mustUnpublish(v)
	}
	finish()
	k.wantBareDisk()
	k.wantNothingLeft()
	return calls, killed
}

// prove checks that a volume is whole and lives.
func (k *killing) prove(v *harness.Volume) {
	k.t.Helper()
	k.becomesCurrent(v)
	k.change()
	k.becomesCurrent(v)
	harness.Eventually(k.t, afterRestart+pruning, func() error { return k.pruned(v) })
	k.wantMounts(1)
	k.wantBareDisk()
}

func (k *killing) end(v *harness.Volume) {
	k.t.Helper()
	k.mustUnpublish(v)
	k.wantNothingLeft()
}

func (k *killing) untilSettledOrKilled(v *harness.Volume) {
	k.t.Helper()
	harness.Eventually(k.t, afterRestart+pruning, func() error {
		if k.Process().Ended() {
			return nil
		}
		return k.settled(v)
	})
}

// pruning is what the plugin waits before it removes the generation before.
const pruning = 2 * time.Second
