package fuzz

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/pkg/volume"
)

const (
	// victim is the volume in whose place an input's record is, for the most part.
	victim = "csi-victim"
	// sentinelID is the volume by which the test hears that the queue was worked off.
	sentinelID, sentinelUID = "csi-sentinel", "uid-sentinel"
)

// What an input puts into the state directory.
const (
	aFile = iota
	aLink
	aDirectory
	aMountInADirectory
	aPipe
	kinds
)

// newRecordWorld makes a world with a victim and a sentinel.
func newRecordWorld(tb testing.TB) *world {
	tb.Helper()
	w := newWorld(tb)
	for _, uid := range []string{selfUID, sentinelUID} {
		w.must(os.MkdirAll(filepath.Dir(w.target(uid, settings)), 0o750))
	}
	w.mustPublish(victim, selfUID, "app")
	w.mustPublish(sentinelID, sentinelUID, sentinel)
	w.look()
	return w
}

// goodRecord is the victim's record as the plugin writes it, with names in place of paths.
func goodRecord(tb testing.TB) string {
	tb.Helper()
	w := newRecordWorld(tb)
	defer w.close()
	text, err := os.ReadFile(filepath.Join(w.state, victim+".json"))
	w.must(err)
	return strings.NewReplacer(w.target(selfUID, settings), "{target}", w.kubelet, "{kubelet}").Replace(string(text))
}

// recordSeeds are changes of a good record.
func recordSeeds(good string) []string {
	seeds := []string{good, good + good, "", "{", "null", "[]", "{}", good[:len(good)/2], strings.ToUpper(good)}
	for from, tos := range map[string][]string{
		"{target}": {
			"{bystander}", "{outside}/ours", "{outside}/foreign", "{outside}/empty", "{kubelet}/plugins/ours", "{target}/", "{target}/../mount", "", "{kubelet}/pods/uid-other/volumes/kubernetes.io~csi/near/mount",
			"{kubelet}/pods/uid-self/volumes/kubernetes.io~csi/linked/mount", "{kubelet}/pods/uid-self/volumes/kubernetes.io~empty-dir/cache", "{kubelet}/pods/volumes/kubernetes.io~csi/x/mount", "{kubelet}/pods/uid-self/volumes/../../../../outside/ours",
			"{kubelet}/pods/uid-out/ours", "{kubelet}/pods/uid-link/volumes/kubernetes.io~csi/near/mount",
		},
		victim:                  {bystander, "csi-outside", "../state/x", "csi-near", "", "."},
		`"uid":"` + selfUID:     {`"uid":"` + bystanderUID, `"uid":".`, `"uid":"`, `"uid":"..`, `"uid":"../uid-other`, `"uid":"/`},
		`"optional"`:            {`"path":"x","optional"`},
		`"spec":{`:              {`"spec":{"updatePolicy":"Pinned",`, `"spec":{"writeStrategy":"InPlace",`, `"spec":{"uid":-7,`, `"spec":{"gid":9223372036854775807,`, `"spec":null,"spec2":{`},
		`"sources":[`:           {`"sources":[{},`, `"sources":[{"podEnv":{"path":"../x"}},`, `"sources":[{"env":{"path":"/x","env":[{"name":"A"}]},"field":""},`, `"sources":[null,`},
		`"defaultMode":420`:     {`"defaultMode":4294967295`, `"defaultMode":2147483648`, `"defaultMode":0`},
		`"name":"app"`:          {`"name":"` + missing + `"`, `"name":"../x"`, `"name":""`},
		`"namespace":"ns"`:      {`"namespace":"other"`, `"namespace":""`},
		`"field":"configMap"`:   {`"items":[{"key":"key","path":"../../../x"}],"field":"x"`, `"items":[{"key":"key","path":"/etc/x"}],"field":"x"`, `"items":[{"key":"key","path":"..data"}],"field":"x"`, `"items":[{"key":"key","path":"a/b/c","mode":4095}],"field":"x"`},
		`"shown":[`:             {`"shown":[{"kind":"Pod","name":"..","namespace":"/"},`, `"shown":[null,`},
		`"resourceVersion":"5"`: {`"resourceVersion":"6"`, `"resourceVersion":"x"`, `"resourceVersion":""`},
		`"version":1`:           {`"version":2`, `"version":1,"size":9223372036854775807`},
	} {
		for _, to := range tos {
			seeds = append(seeds, strings.ReplaceAll(good, from, to))
		}
	}
	return seeds
}

// FuzzRecord puts something into the state directory of a plugin that is not running: mostly
// a text in the place of a volume's record.
func FuzzRecord(f *testing.F) {
	good := goodRecord(f)
	for _, text := range recordSeeds(good) {
		f.Add(victim+".json", []byte(text), byte(aFile))
	}
	// Records of what carries the plugin's source, but is at no target.
	for id, target := range map[string]string{
		"csi-outside": "{outside}/ours", "csi-plugins": "{kubelet}/plugins/ours", "csi-emptydir": "{kubelet}/pods/uid-other/volumes/kubernetes.io~empty-dir/ours",
		"2:csi-near": "{kubelet}/pods/uid-other/volumes/kubernetes.io~csi/near/mount",
	} {
		f.Add(id+".json", []byte(strings.NewReplacer(victim, id, "{target}", target, selfUID, otherUID).Replace(good)), byte(aFile))
	}
	for _, name := range []string{
		victim + ".json", bystander + ".json", "new.json", ".json", "..json", "x", victim + ".json.tmp", victim + ".json.damaged", "-.json", "\xff.json", "a\nb.json",
	} {
		f.Add(name, []byte(strings.ReplaceAll(good, victim, strings.TrimSuffix(name, ".json"))), byte(aFile))
		f.Add(name, []byte("{outside}/dir"), byte(aLink))
		f.Add(name, []byte(bystander+".json"), byte(aLink))
		for kind := aDirectory; kind < kinds; kind++ {
			f.Add(name, []byte(nil), byte(kind))
		}
	}
	on := keep(f, newRecordWorld)
	f.Fuzz(func(t *testing.T, name string, text []byte, kind byte) {
		if name == "" || name == ".." || name == "." || len(name) > 255 || strings.ContainsAny(name, "/\x00") || strings.HasPrefix(name, sentinelID) {
			return
		}
		on(t, func(w *world) { w.tryRecord(t, name, w.expand(string(text)), int(kind)%kinds) })
	})
}

// tryRecord stops the plugin, puts something into the state directory, starts the plugin
// again, and ends the volumes.
func (w *world) tryRecord(t *testing.T, name, text string, kind int) {
	t.Helper()
	w.must(w.end())
	path := filepath.Join(w.state, name)
	w.must(os.RemoveAll(path))
	w.must(w.plant(path, text, kind))
	w.look()
	mounted := w.mountedIn(w.state)
	if err := w.begin(klog.NewContext(context.Background(), klog.Logger{})); err != nil {
		t.Fatalf("start: %v", err)
	}
	w.workOff(t)
	at := w.place(victim, w.target(selfUID, settings)) // its files may be others now
	if strings.HasPrefix(name, bystander) {
		at = w.place(bystander, w.target(bystanderUID, settings))
	}
	at.source = "" // a start unmounts nothing of a pod that is there
	w.check(t, "start", at)
	for _, v := range []struct{ id, uid string }{{victim, selfUID}, {bystander, bystanderUID}} {
		id, uid := v.id, v.uid
		if err := w.unpublish(id, w.target(uid, settings)); err != nil && mounted == 0 {
			t.Errorf("unpublish of %s: %v", id, err)
		}
		w.check(t, "unpublish of "+id, w.place(id, w.target(uid, settings)))
		if _, err := os.Lstat(w.target(uid, settings)); err == nil {
			t.Errorf("%s is still there", id)
		}
	}
	if now := w.mountedIn(w.state); now != mounted {
		t.Errorf("%d mounts in the state directory, were %d", now, mounted)
	}
	w.reset()
	if strings.HasSuffix(name, ".tmp") && kind != aDirectory && kind != aMountInADirectory {
		w.tryInTheWay(t, text, kind)
	}
}

// tryInTheWay puts something where the plugin, which is running, first writes a record.
func (w *world) tryInTheWay(t *testing.T, text string, kind int) {
	t.Helper()
	target := w.target(selfUID, settings)
	w.must(w.unpublish(victim, target))
	w.look()
	record := filepath.Join(w.state, victim+".json")
	w.must(w.plant(record+".tmp", text, kind))
	w.mustPublish(victim, selfUID, "app")
	w.check(t, "publish", w.place(victim, target))
	if info, err := os.Lstat(record); err != nil || !info.Mode().IsRegular() {
		t.Errorf("the record is %v, %v", info, err)
	}
}

// workOff returns when every volume that a start takes over was reconciled. A look at the
// sentinel may be for an earlier reason, so it is not the first that counts.
func (w *world) workOff(t *testing.T) {
	t.Helper()
	for range 3 {
		select {
		case <-w.objects.looked:
		default:
		}
		w.objects.touch(volume.Ref{Kind: volume.ConfigMap, Namespace: "ns", Name: sentinel})
		select {
		case <-w.objects.looked:
		case <-time.After(time.Minute):
			t.Fatal("the queue is not worked off")
		}
	}
}

// mountedIn counts the mounts below a directory.
func (w *world) mountedIn(dir string) int {
	w.Helper()
	mounts, err := harness.MountsBelow(dir)
	w.must(err)
	return len(mounts)
}

// reset publishes the volumes again that an input has ended, and removes what it has left.
func (w *world) reset() {
	w.Helper()
	w.unmountBelow(w.state)
	entries, err := os.ReadDir(w.state)
	w.must(err)
	for _, e := range entries {
		if e.Name() != sentinelID+".json" {
			w.must(os.RemoveAll(filepath.Join(w.state, e.Name())))
		}
	}
	w.mustPublish(victim, selfUID, "app")
	w.mustPublish(bystander, bystanderUID, "app")
	w.look()
}

// plant puts something at a path, and returns an error if that is not possible.
func (w *world) plant(path, text string, kind int) error {
	switch kind {
	case aLink:
		if text == "" || len(text) > 4000 || strings.ContainsRune(text, 0) {
			return nil
		}
		return os.Symlink(text, path)
	case aDirectory, aMountInADirectory:
		if err := os.MkdirAll(path+"/not/empty", 0o700); err != nil || kind == aDirectory {
			return err
		}
		if err := unix.Mount(w.outside+"/foreign", path+"/not", "", unix.MS_BIND, ""); err != nil {
			return err
		}
		return unix.Mount(driver+":"+victim, path+"/not/dir", "tmpfs", 0, "size=64k")
	case aPipe:
		return unix.Mkfifo(path, 0o600)
	}
	return os.WriteFile(path, []byte(text), 0o600)
}
