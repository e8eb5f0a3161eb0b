package integration

import (
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/supervise"
)

// operation does something with a volume while the plugin may be killed at any call, and
// restarts and mends. nth is the call to kill at; it returns the calls that the
// operation made and whether the plugin was killed.
type operation struct {
	name string
	run  func(k *killing, decide supervise.Decide) (calls []supervise.Call, killed bool)
}

func operations() []operation {
	return []operation{
		{"publish", (*killing).publishKilled},
		{"first publish", (*killing).publishAbandoned},
		{"update", func(k *killing, decide supervise.Decide) ([]supervise.Call, bool) {
			return k.changeKilled(decide, k.change)
		}},
		{"touch", func(k *killing, decide supervise.Decide) ([]supervise.Call, bool) {
			return k.changeKilled(decide, k.touch)
		}},
		{"unpublish", (*killing).unpublishKilled},
	}
}

func (k *killing) publishKilled(decide supervise.Decide) ([]supervise.Call, bool) {
	k.t.Helper()
	v := k.newVolume()
	finish := k.watch(v, false)
	k.Arm(decide)
	err := k.Publish(k.t.Context(), v)
	calls, killed := k.killedBy(err)
	if killed {
		k.restart()
		k.mustPublish(v)
	}
	k.prove(v)
	finish()
	k.end(v)
	return calls, killed
}

// publishAbandoned is a publish of a pod that is deleted while the plugin is down: the
// kubelet will not publish again.
func (k *killing) publishAbandoned(decide supervise.Decide) ([]supervise.Call, bool) {
	k.t.Helper()
	v := k.newVolume()
	finish := k.watch(v, true)
	k.Arm(decide)
	err := k.Publish(k.t.Context(), v)
	calls, killed := k.killedBy(err)
	if killed {
		k.restart()
	}
	k.mustUnpublish(v)
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
	k.becomesTidy(v)
	k.wantMounts(1)
	k.wantBareDisk()
}

func (k *killing) end(v *harness.Volume) {
	k.t.Helper()
	k.mustUnpublish(v)
	k.wantNothingLeft()
}

// killedBy ends the count of calls after a CSI call that returned err, which must be nil
// unless the plugin was killed, and says whether it was.
func (k *killing) killedBy(err error) ([]supervise.Call, bool) {
	k.t.Helper()
	calls, killed := k.Disarm()
	if err != nil && !killed {
		k.t.Fatalf("the plugin has not been killed, and said: %v", err)
	}
	return calls, killed
}

// changeKilled changes the objects of a volume, and waits until it has followed.
func (k *killing) changeKilled(decide supervise.Decide, change func()) ([]supervise.Call, bool) {
	k.t.Helper()
	v := k.newVolume()
	k.mustPublish(v)
	finish := k.watch(v, false)
	k.Arm(decide)
	change()
	k.untilSettledOrKilled(v)
	calls, killed := k.Disarm()
	if killed {
		k.restart()
		k.becomesCurrent(v)
		k.mustPublish(v) // as the kubelet may at any time
	}
	k.prove(v)
	finish()
	k.end(v)
	return calls, killed
}

func (k *killing) untilSettledOrKilled(v *harness.Volume) {
	k.t.Helper()
	harness.Eventually(k.t, afterRestart+pruning, func() error {
		if k.ended() {
			return nil
		}
		return k.settled(v)
	})
}

// pruning is what the plugin waits before it removes the generation before.
const pruning = 2 * time.Second

func (k *killing) unpublishKilled(decide supervise.Decide) ([]supervise.Call, bool) {
	k.t.Helper()
	v := k.newVolume()
	k.mustPublish(v)
	k.becomesCurrent(v)
	finish := k.watch(v, true)
	k.Arm(decide)
	err := k.Unpublish(k.t.Context(), v)
	calls, killed := k.killedBy(err)
	if killed {
		k.restart()
		k.mustUnpublish(v)
	}
	finish()
	k.wantBareDisk()
	k.wantNothingLeft()
	return calls, killed
}
