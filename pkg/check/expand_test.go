package check

import (
	"context"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

// textCluster is a fakeCluster with the texts of keys.
type textCluster struct {
	fakeCluster
	texts map[string]string // by Ref and key
}

func (c *textCluster) Text(_ context.Context, ref volume.Ref, key string) ([]byte, error) {
	text, ok := c.texts[ref.String()+" "+key]
	if !ok {
		return nil, nil
	}
	return []byte(text), nil
}

func (c *fakeCluster) Text(context.Context, volume.Ref, string) ([]byte, error) { return nil, nil }

// expanding is a pod whose volume expands the key t of the ConfigMap app.
const expanding = `
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
        sources: |
          - expand:
              path: app.yaml
              configMap: {name: app, key: t}
              envFrom: [{prefix: DB_, secretRef: {name: db}}]
              env:
              - {name: A, value: x}
              - {name: B, value: "$(A)", escape: json}
              - {name: C, valueFrom: {secretKeyRef: {name: db, key: c}}}
`

func TestLiveTexts(t *testing.T) {
	const at = "f.yaml, document 1: Pod ns/p: spec.volumes[0].csi.volumeAttributes.sources[0].expand"
	const unusedC = at + ".env[2].name: the text doesn't use variable C: write $(C) where its value belongs, or remove the variable"
	for text, want := range map[string][]string{
		"$(B)$(C)":             nil, // A is in the value of B; not every key of a whole object is for the text
		"$(B)$$(C)":            {unusedC},
		"$(B)$$$(C)(C)":        {unusedC},
		"$$(C)$(C)$(B)":        nil,
		"$(B)${C}":             {at + ".env[2].name: the text has ${C}, which stays as it is: write $(C)"},
		"$(B)${C}$(C)":         nil,
		"$(B)$(C)${DB_c}":      {at + ".envFrom[0].secretRef: the text has ${DB_c}, which stays as it is: write $(DB_c)"},
		"$(B)$(C)${c}${other}": nil,
	} {
		cluster := &textCluster{fakeCluster{objects: map[string]Object{`ConfigMap "ns/app"`: having("t"), `Secret "ns/db"`: having("c", "d")}}, map[string]string{`ConfigMap "ns/app" t`: text}}
		r := add(t, cluster, expanding)
		lines(t, text, texts(r.Warnings), want)
		lines(t, "problems of "+text, texts(r.Problems), nil)
	}
}

// A text that isn't there, or can't be read, is no warning: what is missing is a problem by itself.
func TestLiveTextsThatAreMissing(t *testing.T) {
	for _, object := range []Object{{Exists: No}, {Exists: Unknown}, having("other"), having("t")} {
		cluster := &textCluster{fakeCluster{objects: map[string]Object{`ConfigMap "ns/app"`: object, `Secret "ns/db"`: having("c")}}, nil}
		lines(t, "warnings", texts(add(t, cluster, expanding).Warnings), nil)
	}
}
