package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// TestReferencesOfTheShortForm renders the kustomization of docs/volume-sources.md around a Pod and a
// Deployment, whose attributes get the names that kustomize generates.
func TestReferencesOfTheShortForm(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)`([a-z]+\\.yaml)`:\n\n```yaml\n(.*?)```").FindAllStringSubmatch(documents(t)["docs/volume-sources.md"], -1)
	if len(blocks) != 2 {
		t.Fatalf("the document has %d files", len(blocks))
	}
	const spec = `volumes:
  - {name: settings, csi: {driver: csi.refvol.dev, readOnly: true, volumeAttributes: {configMap: settings}}}
  - {name: login, csi: {driver: csi.refvol.dev, readOnly: true, volumeAttributes: {secret: login}}}
`
	files := [][3]string{{"", "app.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: app}\nspec:\n  " + spec +
		"---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: app}\nspec:\n  template:\n    spec:\n      " + strings.ReplaceAll(spec, "\n", "\n    ")}}
	for _, block := range blocks {
		files = append(files, [3]string(block))
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(dir, f[1]), []byte(f[2]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	objects := render(t, dir)
	settings, login := only[*corev1.ConfigMap](t, objects).Name, only[*corev1.Secret](t, objects).Name
	if settings == "settings" || login == "login" {
		t.Fatalf("the names %s and %s are not generated", settings, login)
	}
	for _, volumes := range [][]corev1.Volume{
		only[*corev1.Pod](t, objects).Spec.Volumes,
		only[*appsv1.Deployment](t, objects).Spec.Template.Spec.Volumes,
	} {
		if got := volumes[0].CSI.VolumeAttributes["configMap"]; got != settings {
			t.Errorf("the volume shows the ConfigMap %s, want %s", got, settings)
		}
		if got := volumes[1].CSI.VolumeAttributes["secret"]; got != login {
			t.Errorf("the volume shows the Secret %s, want %s", got, login)
		}
	}
}
