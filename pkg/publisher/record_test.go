package publisher

import (
	"io/fs"
	"os"
	"testing"

	"github.com/refvol/refvol/internal/leak"
)

// canary stands for a value that must not get anywhere but into the volume's files.
const canary = leak.Value

func TestNoValueLeavesTheVolume(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(secret("db"), "password", canary, "long", canary+pages(1))
		r := e.request("v1", "secret", "db")
		e.publish(r)
		e.objects.put(secret("db"), "password", canary+"2")
		e.settle()
		e.wantFiles(r, "password", canary+"2")
		// The failures that come near to values.
		e.writes.set(func() error { return errFault }, nil)
		e.objects.put(secret("db"), "password", canary+"3")
		e.settle()
		e.writes.set(nil, nil)
		e.objects.put(secret("db"), "password", canary+pages(300))
		e.settle()
		e.wantProblem(r, "bytes of memory")
		e.restart()
		e.objects.remove(secret("db"))
		e.settle()
		e.wantProblem(r, "not found")
		e.wantReason(e.p.Publish(e.ctx, e.request("v2", "secret", "db", "items", "[{key: x, path: x}]")), ReasonNotFound, "")

		if len(e.stateFiles()) == 0 || len(e.logs.with("")) < 3 {
			t.Error("there was nothing to search")
		}
		e.searchAll()
	})
}

func TestRecordsAreForNobodyElse(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.publish(e.request("v1"))
		for path, want := range map[string]fs.FileMode{e.opts.StateDir: fs.ModeDir | 0o700, e.recordPath("v1"): 0o600} {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode() != want {
				t.Errorf("%s has mode %v, want %v", path, info.Mode(), want)
			}
		}
	})
}

// A record keeps the defaults that the volume was published with, so that a newer
// plugin with others doesn't change it.
func TestARecordHoldsAllThatARestartNeeds(t *testing.T) {
	e := newEnv(t, nil)
	e.objects.put(configMap("app"), "a", "1")
	group := int64(7)
	r := e.request("v1", "configMap", "app", "optional", "true", "items", "[{key: a, path: x/a, mode: 0400}]")
	r.FSGroup = &group
	e.publish(r)
	loaded, err := e.p.records.load("v1.json", e.opts.KubeletDir)
	if err != nil {
		t.Fatal(err)
	}
	before, got := e.p.lookup("v1"), e.p.recorded(loaded)
	if what := got.request.differs(&r); what != "" || *got.request.FSGroup != 7 {
		t.Errorf("the request differs in its %s", what)
	}
	source, want := got.spec.Sources[0], before.spec.Sources[0]
	if got.spec.DefaultMode != before.spec.DefaultMode || source.Ref != want.Ref || !source.Optional || source.Field != want.Field ||
		source.Items[0].Path != "x/a" || *source.Items[0].Mode != *want.Items[0].Mode {
		t.Errorf("the spec is %+v, want %+v", got.spec, before.spec)
	}
	if v := got.contents.shown[configMap("app")]; v != before.contents.shown[configMap("app")] || v.UID == "" {
		t.Errorf("shown is %v", v)
	}
	if got.contents.proven {
		t.Error("what another process wrote counts as proven")
	}
}

// A record is replaced by rename: one that can't be written leaves the old one.
func TestARecordIsWrittenWholeOrNotAtAll(t *testing.T) {
	e := newEnv(t, nil)
	e.objects.put(configMap("app"), "a", "1")
	e.publish(e.request("v1"))
	before, err := os.ReadFile(e.recordPath("v1"))
	if err != nil {
		t.Fatal(err)
	}
	e.blockRecord("v1")
	changed := e.record("v1")
	changed.Size = 12345
	if _, err := e.p.records.save(changed); err == nil {
		t.Error("no error")
	}
	e.unblockRecord("v1")
	if after, err := os.ReadFile(e.recordPath("v1")); err != nil || string(after) != string(before) {
		t.Errorf("the record is %s, %v", after, err)
	}
	if _, err := e.p.records.save(changed); err != nil {
		t.Error(err)
	}
	if got := e.stateFiles(); len(got) != 1 {
		t.Errorf("the state directory has %v", got)
	}
}

// A rename that fails must not leave its source.
func TestAFailedRenameLeavesNothing(t *testing.T) {
	e := newEnv(t, nil)
	if err := os.MkdirAll(e.recordPath("v1")+"/in-the-way", 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := e.p.records.save(&record{VolumeID: "v1"}); err == nil {
		t.Error("no error")
	}
	if got := e.stateFiles(); len(got) != 1 {
		t.Errorf("the state directory has %v", got)
	}
}
