package integration

import "testing"

// The kubelet repeats an unpublish whose answer it lost: each further one succeeds too,
// of the same process, of the next one, and after a reboot. A target that is left fails
// mustUnpublish.
func TestUnpublishAgain(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.configMap("app", map[string]string{"key": n.canary()})
	v, rebooted := n.short("app"), n.short("app")
	n.mustPublish(v)
	n.mustPublish(rebooted)
	n.mustUnpublish(v)
	n.mustUnpublish(v)
	n.wantMounts(1)
	n.mustKill()
	n.mustStart()
	n.mustUnpublish(v)
	n.wantMounts(1)
	n.reboot()
	for range 3 {
		n.mustUnpublish(rebooted)
	}
	n.wantNothingLeft()
}
