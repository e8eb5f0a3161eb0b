package integration

import (
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/supervise"
)

// TestNothingIsExecuted traces the plugin from its start through publish, update, restart, takeover
// and unpublish: no program is run but the plugin itself, whose image has no other.
func TestNothingIsExecuted(t *testing.T) {
	// See supervise.New.
	collect := debug.SetGCPercent(-1)
	defer debug.SetGCPercent(collect)
	n := newNodeSupervisedAt(t, []string{"execve", "execveat"})
	n.Arm(supervise.CountOnly)
	n.configMap("app", map[string]string{"key": n.canary()})
	atomic, inPlace := n.short("app"), n.short("app")
	inPlace.Attributes["writeStrategy"] = "InPlace"
	env := n.volume(map[string]string{"sources": "- configMap: {name: app}\n- podEnv: {path: pod.env, container: main}\n"})
	volumes := []*harness.Volume{atomic, inPlace, env}
	for _, v := range volumes {
		n.publishesSoon(v)
	}
	change := func() {
		t.Helper()
		value := n.canary()
		n.configMap("app", map[string]string{"key": value})
		for _, v := range volumes {
			n.arrives(v, "key", value, afterRestart)
		}
	}
	change()
	if made, _ := n.Disarm(); len(made) > 0 {
		t.Errorf("publish and update ran %v", made)
	}

	n.mustKill()
	n.Arm(supervise.CountOnly)
	n.mustStart()
	change()
	for _, v := range volumes {
		n.mustUnpublish(v)
	}
	n.wantNothingLeft()
	// That the plugin's own start is seen shows that nothing else was missed.
	if made, _ := n.Disarm(); len(made) != 1 || filepath.Base(made[0].Path) != "refvol-plugin" {
		t.Errorf("start, takeover, update and unpublish ran %v, want the plugin only", made)
	}
}
