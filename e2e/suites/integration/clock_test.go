package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestClockIsSet sets the node's clock back by an hour, forward by two, and back again. Only names and reported times depend
// on it.
func TestClockIsSet(t *testing.T) {
	if !harness.Scaled(false, true) {
		t.Skip("SKIP: it belongs to the long form (REFVOL_LONG=1): for its plugin all of the standard library is compiled again")
	}
	t.Parallel()
	binary, err := buildClocked(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, detection := range map[string]struct{ kubeconfig, resync string }{
		"Watch": {shared.kubeconfig, "1h"},
		"Get":   {componentAccount(t, "get"), "1s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newClockNode(t, binary, func(o harness.PluginOptions) *node {
				o.Kubeconfig = detection.kubeconfig
				return newNodeWith(t, o)
			}, "--change-detection="+name, "--resync-interval="+detection.resync)
			n.playClock()
		})
	}
	t.Run("tokens", func(t *testing.T) {
		t.Parallel()
		n := newClockNode(t, binary, func(o harness.PluginOptions) *node { return newPodNodeWith(t, o) })
		n.playTokens()
	})
}

// playClock sets the clock while volumes are updated, wait for their moments, and are opened.
func (n *clockNode) playClock() {
	n.isSet()
	w, s := n.watch(n.newThing("configMap", "app")), n.newSpreads()
	n.configMap("opened", map[string]string{"key": n.canary()})
	opened := n.short("opened")
	n.publishes(opened, soon)
	n.opens(opened)
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		before := n.off()
		n.change(s)
		old := n.update(w)
		waited := n.waiting()
		if len(waited) == 0 {
			n.t.Fatal("no volume waits when the clock is set")
		}
		n.set(off)
		n.isSet()
		n.unopened(opened)
		n.lasts(old)
		_ = n.atTheirMoments(s, waited, before) // most have to wait for seconds more
		n.lasts(n.update(w))
		n.opens(opened)
		harness.Eventually(n.t, soon, func() error { return n.atTheirMoments(s, waited, before) })
	}
	old := n.update(w)
	n.mustKill()
	n.set(0)
	n.mustStart()
	n.isSet()
	n.lasts(old)
	n.lasts(n.update(w))
	if harness.IsRoot() {
		n.isOpened(opened, "opened", "")
	}
	n.unopened(opened)
	n.opens(opened)
	w.stop()
	for _, v := range append(s.volumes, w.volume, opened) {
		n.mustUnpublish(v)
	}
	n.wantNothingLeft()
}

// playTokens has pods start while their tokens have expired, by the node's clock, or are of the future.
func (n *clockNode) playTokens() {
	n.secret("db", map[string]string{"key": n.canary()})
	defer allow(n.t, n.namespace, readers("secret", "db"), account(n.namespace, "web"))()
	for _, off := range []time.Duration{0, 2 * time.Hour, -time.Hour} {
		n.set(off)
		n.isSet()
		v := n.own("secret", "db", "web")
		n.publishes(v, soon)
		want := n.canary()
		n.secret("db", map[string]string{"key": want})
		n.arrives(v, "key", want, soon)
		n.mustUnpublish(v)
	}
	n.wantNothingLeft()
}

// superseded is a generation that an update has replaced.
type superseded struct {
	name string
	// dir is open, path is one of its files, and content what that holds.
	dir           int
	path, content string
	// began is before it was replaced.
	began time.Time
}

// update changes the one object of a volume, waits until that shows, and returns the generation that is superseded now.
func (n *clockNode) update(w *observer) *superseded {
	n.t.Helper()
	o := &superseded{name: n.newest(w)}
	o.path, o.content = w.things[0].manifest()
	var err error
	if o.dir, err = unix.Open(filepath.Join(n.Target(w.volume), o.name), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { unix.Close(o.dir) })
	o.began = time.Now()
	w.things[0].write()
	took := converges(n.t, soon, w)
	n.t.Logf("with a clock that is off by %s an update took %s", n.off(), took.Round(time.Millisecond))
	if now := n.newest(w); now <= o.name {
		n.t.Errorf("generation %s comes after %s", now, o.name)
	}
	return o
}

// newest returns the generation that ..data leads to, and checks that no other has a later name.
func (n *clockNode) newest(w *observer) string {
	n.t.Helper()
	current, err := os.Readlink(filepath.Join(n.Target(w.volume), "..data"))
	if err != nil {
		n.t.Fatal(err)
	}
	all, err := filepath.Glob(filepath.Join(n.Target(w.volume), "..2*"))
	if err != nil || filepath.Base(slices.Max(append(all, current))) != current {
		n.t.Errorf("..data leads to %s, and there are %v (%v)", current, all, err)
	}
	return current
}

// lasts checks that a superseded generation has its second, and no hour.
func (n *clockNode) lasts(o *superseded) {
	n.t.Helper()
	harness.Eventually(n.t, soon, func() error {
		switch got, err := readAt(o.dir, o.path); {
		case errors.Is(err, errGone):
			return nil
		case err != nil || got != o.content:
			n.t.Fatalf("%s of generation %s holds %q (%v), want %q", o.path, o.name, got, err, o.content)
		}
		return fmt.Errorf("generation %s is still there", o.name)
	})
	if took := time.Since(o.began); took < time.Second {
		n.t.Errorf("generation %s was there for less than %s, with a clock that is off by %s", o.name, took, n.off())
	}
}

// spreads are volumes with a spread that show one ConfigMap.
type spreads struct {
	value   int
	volumes []*harness.Volume
}

const spreadConfigMap, spreadTime = "spread", "8s"

func (n *clockNode) newSpreads() *spreads {
	n.t.Helper()
	s := &spreads{}
	n.configMap(spreadConfigMap, map[string]string{"key": fmt.Sprint(s.value)})
	for range 8 {
		v := n.volume(map[string]string{"configMap": spreadConfigMap, "spread": spreadTime})
		n.publishes(v, soon)
		s.volumes = append(s.volumes, v)
	}
	return s
}

// waiting returns why volumes wait for their moments, by their ids.
func (n *clockNode) waiting() map[string]string {
	n.t.Helper()
	report, err := n.report()
	if err != nil {
		n.t.Fatal(err)
	}
	reasons := map[string]string{}
	for i := range report.Volumes {
		if v := &report.Volumes[i]; v.Condition == "Spreading" {
			reasons[v.VolumeID] = v.Reason
		}
	}
	return reasons
}

// change changes the ConfigMap and waits until a volume waits for its moment.
func (n *clockNode) change(s *spreads) {
	n.t.Helper()
	s.value++
	n.configMap(spreadConfigMap, map[string]string{"key": fmt.Sprint(s.value)})
	harness.Eventually(n.t, soon, func() error {
		if len(n.waiting()) == 0 {
			return errors.New("no volume waits for its moment")
		}
		return nil
	})
}

var moment = regexp.MustCompile(`will show at (\S+) \(spread`)

// atTheirMoments returns an error while volumes wait, and checks that those that waited when the clock was set, at which it was off by so
// much, still do so for the same reason, or that their moments have come.
func (n *clockNode) atTheirMoments(s *spreads, waited map[string]string, off time.Duration) error {
	n.t.Helper()
	late := n.waiting()
	for id, reason := range late {
		if before, ok := waited[id]; ok && before != reason {
			n.t.Errorf("volume %s waited because %q, and then because %q", id, before, reason)
		}
	}
	for _, v := range s.volumes {
		got, err := n.content(v, "key")
		if err != nil {
			n.t.Fatal(err)
		}
		if got != fmt.Sprint(s.value) {
			late[v.ID()] = "it shows " + got
		} else if reason, ok := waited[v.ID()]; ok {
			n.notBefore(reason, off)
			delete(waited, v.ID())
		}
	}
	if len(late) > 0 {
		return fmt.Errorf("volumes wait: %v", late)
	}
	return nil
}

// notBefore checks that the moment of a volume has come, by a clock that nobody sets.
func (n *clockNode) notBefore(reason string, off time.Duration) {
	n.t.Helper()
	found := moment.FindStringSubmatch(reason)
	if found == nil {
		n.t.Fatalf("the reason names no moment: %q", reason)
	}
	at, err := time.Parse(time.RFC3339, found[1])
	if err != nil {
		n.t.Fatal(err)
	}
	if early := time.Until(at.Add(-off)); early > 0 {
		n.t.Errorf("a volume changed %s before its moment", early)
	} else {
		n.t.Logf("a volume changed %s after its moment", -early)
	}
}

// unopened changes the ConfigMap of a volume, and waits until the status says that its new content was not opened.
func (n *clockNode) unopened(v *harness.Volume) {
	n.t.Helper()
	if !harness.IsRoot() { // see needsReceipts
		return
	}
	n.configMap("opened", map[string]string{"key": n.canary()})
	n.isOpened(v, "opened", "no", "key")
}

// opens checks that the content was not opened until now, opens it, and waits until the status says so, with the time of the plugin's clock.
func (n *clockNode) opens(v *harness.Volume) {
	n.t.Helper()
	if !harness.IsRoot() {
		return
	}
	n.isOpened(v, "opened", "no", "key")
	path := filepath.Join(n.Target(v), "key")
	n.reads(path)
	n.isOpened(v, "opened", "")
	report, err := n.report()
	if err != nil {
		n.t.Fatal(err)
	}
	for i := range report.Volumes {
		if of := &report.Volumes[i]; of.VolumeID == v.ID() && report.ObservedAt.Sub(*of.Objects[0].OpenedAt).Abs() > soon {
			n.t.Errorf("opened at %s, and it is %s", of.Objects[0].OpenedAt, report.ObservedAt)
		}
	}
	harness.Eventually(n.t, soon, func() error { // so that a kill loses nothing
		_, err := unix.Getxattr(path, "trusted.refvol.opened", nil)
		return err
	})
}
