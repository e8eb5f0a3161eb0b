package integration

import (
	"testing"

	"github.com/refvol/refvol/e2e/tools/harness"
)

func TestKeysComeAndGo(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	stays := n.canary()
	n.configMap("app", map[string]string{"stays": stays, "goes": n.canary()})
	v := n.short("app")
	n.mustPublish(v)

	comes := n.canary()
	n.configMap("app", map[string]string{"stays": stays, "comes": comes})
	n.arrives(v, "comes", comes, soon)
	n.vanishes(v, "goes", soon)
	n.configMap("app", nil)
	n.vanishes(v, "comes", soon)
	n.vanishes(v, "stays", soon)
	if files, err := harness.Files(n.Target(v)); err != nil || len(files) != 0 {
		t.Errorf("files of an empty object = %v, %v, want none", files, err)
	}
}
