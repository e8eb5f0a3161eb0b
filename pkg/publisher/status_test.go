package publisher

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/volume"
)

// status returns what the Publisher reports about its only volume.
func (e *env) status() VolumeStatus {
	e.Helper()
	synctest.Wait()
	all := slices.Collect(e.p.Volumes)
	if len(all) != 1 {
		e.Fatalf("%d volumes, want 1", len(all))
	}
	if err := leak.Check("the reason", all[0].Reason); err != nil {
		e.Error(err)
	}
	if !slices.Contains(Conditions(), all[0].Condition) {
		e.Errorf("condition %q is not listed", all[0].Condition)
	}
	return all[0]
}

// wantStatus checks the condition, since when it exists, and that the reason contains a text. "" means no reason.
func (e *env) wantStatus(condition Condition, since time.Duration, reason string) VolumeStatus {
	e.Helper()
	got := e.status()
	if lasts := time.Since(got.Since); got.Condition != condition || lasts != since || (got.Reason == "") != (reason == "") || !strings.Contains(got.Reason, reason) {
		e.Errorf("%s for %s, %q, want %s for %s, %q", got.Condition, lasts, got.Reason, condition, since, reason)
	}
	return got
}

// TestVolumesAfterARestart: the condition of a mounted volume isn't known before its pod and its objects have been read.
func TestVolumesAfterARestart(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.publishApp()
		e.objects.failWith(configMap("app"), manager.ErrNotSynced)
		e.pods.set(volume.Env{}, errFault)
		e.restart()
		if s := e.wantStatus(ConditionUnknown, 0, "has not taken it over yet"); s.Pod.UID != r.Pod.UID || s.Pod.Name != r.Pod.Name || s.Bytes == 0 {
			t.Errorf("got %+v", s)
		}
		e.pods.set(volume.Env{}, nil)
		after(time.Minute)
		if s := e.status(); s.Condition != ConditionUnknown || !strings.Contains(s.Reason, "not synced") || s.Pod != r.Pod || len(s.Shown) != 1 {
			t.Errorf("got %+v", s)
		}
		e.objects.failWith(configMap("app"), nil)
		e.wantStatus(ConditionCurrent, 0, "")
	})
}

// TestVolumesThatArePinned: a pinned volume is Pinned once it is mounted. Until then it has the condition of what its publish waits for.
func TestVolumesThatArePinned(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.request("v1", "configMap", "app", "updatePolicy", "Pinned")
		waiting := e.publishing(r)
		e.wantStatus(Condition(failure.RefNotFound), 0, `ConfigMap "shop/app" not found`)
		e.objects.put(configMap("app"), "a", "1")
		e.wantDone(waiting)
		e.wantStatus(ConditionPinned, 0, "")
	})
}

// TestOpensWatched: a volume's status says whether this plugin watches opens.
func TestOpensWatched(t *testing.T) {
	check := func(e *env, want bool) {
		r := e.publishApp()
		if got := e.status().OpensWatched; got != want {
			t.Errorf("got %t, want %t", got, want)
		}
		e.unpublish(r)
	}
	inBubble(t, func(e *env) { check(e, false) })
	receiptsInBubble(t, func(e *env, _ *fakeOpens, _ *fakeObserver) { check(e, true) })
}

// TestVolumesWithoutToken: only a volume that needs a token can lack one.
func TestVolumesWithoutToken(t *testing.T) {
	asPods(t, func(e *env, identity *fakeIdentity, _ *fakeAccess) {
		r := e.tokened("v1", "token")
		e.publish(r)
		if e.status().WithoutToken {
			t.Error("it has one")
		}
		identity.restart()
		if !e.status().WithoutToken {
			t.Error("it has none any more")
		}
	})
}

// TestOpenState: a volume whose opens are watched knows more than one whose opens aren't.
func TestOpenState(t *testing.T) {
	app := configMap("app")
	for want, s := range map[opened.State]VolumeStatus{
		opened.Unsupported: {Opened: map[volume.Ref]*opened.Object{app: {State: opened.Yes}}},
		opened.Unknown:     {OpensWatched: true, Opened: map[volume.Ref]*opened.Object{secret("app"): {State: opened.Yes}}},
		opened.Yes:         {OpensWatched: true, Opened: map[volume.Ref]*opened.Object{app: {State: opened.Yes}}},
		opened.No:          {OpensWatched: true, Opened: map[volume.Ref]*opened.Object{app: {State: opened.No}}},
	} {
		if got := s.OpenState(app); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
