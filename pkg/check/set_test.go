package check

import (
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

// TestLiveSets: check --live says whether the objects of a set belong together now.
func TestLiveSets(t *testing.T) {
	const manifest = `
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers: [{name: c}]
  volumes:
  - name: v
    csi:
      driver: csi.refvol.dev
      readOnly: true
      volumeAttributes:
        sameRevision: "true"
        sources: "[{configMap: {name: app}}, {secret: {name: db}}, {secret: {name: late, optional: true}}]"
`
	const at = "f.yaml, document 1: Pod ns/p: spec.volumes[0].csi.volumeAttributes.sameRevision: " +
		"no new pod starts now, because the objects must carry the same refvol.dev/revision: "
	for name, test := range map[string]struct {
		app, db volume.Revision
		want    []string
	}{
		"the same":  {"r1", "r1", nil},
		"different": {"r1", "r2", []string{at + `ConfigMap "ns/app" carries r1, Secret "ns/db" carries r2`}},
		"none":      {"", "r 2", []string{at + `ConfigMap "ns/app" carries none that counts, Secret "ns/db" carries none that counts`}},
	} {
		cluster := &fakeCluster{objects: map[string]Object{
			`ConfigMap "ns/app"`: {Exists: Yes, Revision: test.app}, `Secret "ns/db"`: {Exists: Yes, Revision: test.db},
		}}
		lines(t, name, texts(add(t, cluster, manifest).Problems), test.want)
	}
}
