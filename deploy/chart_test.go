package deploy

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	releaseutil "helm.sh/helm/v4/pkg/release/v1/util"
	"helm.sh/helm/v4/pkg/strvals"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/refvol/refvol/internal/must"
)

const (
	chart = "charts/refvol"
	// oldest is the last version that pod-identity-before-1.35 is for, newest a later one.
	oldest, newest = "v1.34.0", "v1.36.0"
)

type values = map[string]any

// renderChart renders the chart as `helm template` would for a cluster of that version. It returns
// the release's objects, and those of its hooks.
func renderChart(version string, overrides values) (manifests, hooks []byte, err error) {
	loaded, err := load()
	if err != nil {
		return nil, nil, err
	}
	capabilities := common.DefaultCapabilities.Copy()
	kubernetes, err := common.ParseKubeVersion(version)
	if err != nil {
		return nil, nil, err
	}
	capabilities.KubeVersion = *kubernetes
	capabilities.APIVersions = append(capabilities.APIVersions, "monitoring.coreos.com/v1/PodMonitor", "monitoring.coreos.com/v1/PrometheusRule")
	return renderOn(loaded, capabilities, overrides)
}

func chartTexts(t *testing.T, version string, overrides values) (manifests, hooks []byte) {
	t.Helper()
	manifests, hooks, err := renderChart(version, overrides)
	must.Do(t, err)
	return manifests, hooks
}

// load reads the chart once. Nothing changes what it returns.
var load = sync.OnceValues(func() (*chartv2.Chart, error) { return loader.LoadDir(chart) })

func renderOn(loaded *chartv2.Chart, capabilities *common.Capabilities, overrides values) (manifests, hooks []byte, err error) {
	release := common.ReleaseOptions{Name: "refvol", Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(loaded, overrides, release, capabilities)
	if err != nil {
		return nil, nil, err
	}
	files, err := engine.Render(loaded, all)
	if err != nil {
		return nil, nil, err
	}
	delete(files, "refvol/templates/NOTES.txt")
	ofHooks, others, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	if err != nil {
		return nil, nil, err
	}
	for _, hook := range ofHooks {
		hooks = append(hooks, "---\n"+hook.Manifest+"\n"...)
	}
	for _, manifest := range others {
		manifests = append(manifests, "---\n"+manifest.Content+"\n"...)
	}
	return manifests, hooks, nil
}

// chartObjects returns the objects of the release, which has its namespace's, without the annotation
// that keeps it and without the labels that all objects have.
func chartObjects(t *testing.T, version string, overrides values) []runtime.Object {
	t.Helper()
	overrides = maps.Clone(overrides)
	if overrides == nil {
		overrides = values{}
	}
	overrides["namespace"] = values{"create": true}
	manifests, _ := chartTexts(t, version, overrides)
	objects := withoutStandardLabels(t, decode(t, chart, manifests))
	own := only[*corev1.Namespace](t, objects)
	if want := map[string]string{"helm.sh/resource-policy": "keep"}; !maps.Equal(own.Annotations, want) {
		t.Errorf("the namespace's annotations are %v, want %v", own.Annotations, want)
	}
	own.Annotations = nil
	return objects
}

// valuesOf returns what docs/install.md says that a set of components is in the chart, and the version
// of the cluster.
func valuesOf(t *testing.T, set []string) (version string, overrides values) {
	t.Helper()
	page := must.Get(os.ReadFile("../docs/install.md"))(t)
	version, overrides = newest, values{}
	for _, row := range append([]string{"the base alone"}, set...) {
		if row != "the base alone" {
			row = "`" + row + "`"
		}
		value := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(row) + " \\| `([^`]+=[^`]+)`").FindSubmatch(page)
		if value == nil {
			t.Fatalf("docs/install.md has no value for %s", row)
		}
		must.Do(t, strvals.ParseInto(string(value[1]), overrides))
	}
	if slices.Contains(set, "pod-identity-before-1.35") {
		version = oldest
	}
	return version, overrides
}

// withoutStandardLabels takes the labels off objects that each of the chart's has.
func withoutStandardLabels(t *testing.T, objects []runtime.Object) []runtime.Object {
	t.Helper()
	for _, object := range objects {
		accessor := must.Get(meta.Accessor(object))(t)
		for label, want := range map[string]string{
			"helm.sh/chart": "refvol-0.1.0", "app.kubernetes.io/version": "v0.1.0", "app.kubernetes.io/instance": "refvol",
			"app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/part-of": "refvol",
		} {
			if got := accessor.GetLabels()[label]; got != want {
				t.Errorf("%s has the label %s=%q, want %q", accessor.GetName(), label, got, want)
			}
			delete(accessor.GetLabels(), label)
		}
	}
	return objects
}

// wantObjects compares all of two installs but the order of flags and of rights.
func wantObjects(t *testing.T, installed, others []runtime.Object) {
	t.Helper()
	for _, objects := range [][]runtime.Object{installed, others} {
		slices.Sort(pluginContainer(t, only[*appsv1.DaemonSet](t, objects)).Args[1:])
	}
	got, want := byName(t, installed), byName(t, others)
	for name := range got {
		if want[name] == nil {
			t.Errorf("nobody asked for %s", name)
		}
	}
	for name, object := range want {
		if got[name] == nil {
			t.Errorf("there is no %s", name)
		} else if got, want := unfolded(t, got[name]), unfolded(t, object); got != want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, want)
		}
	}
}

func TestChartLint(t *testing.T) {
	version := must.Get(common.ParseKubeVersion(newest))(t)
	for _, message := range lint.RunAll(chart, nil, namespace, lint.WithKubeVersion(version)).Messages {
		if message.Severity > support.InfoSev {
			t.Error(message)
		}
	}
}

// TestChartSaysItsImages: the chart's metadata lists the images that the release has, one for each program. A mirror
// made from this list must have all images that the chart names, also in policies and hooks.
func TestChartSaysItsImages(t *testing.T) {
	loaded := must.Get(load())(t)
	if want := strings.TrimPrefix(loaded.Metadata.AppVersion, "v"); loaded.Metadata.Version != want {
		t.Errorf("version %s, want %s", loaded.Metadata.Version, want)
	}
	if want := strconv.FormatBool(strings.Contains(documents(t)["CHANGELOG.md"], "Nothing is released yet")); loaded.Metadata.Annotations["artifacthub.io/prerelease"] != want {
		t.Errorf("CHANGELOG.md has no release: %s, and the chart says that it is a prerelease: %s", want, loaded.Metadata.Annotations["artifacthub.io/prerelease"])
	}
	var images []struct{ Name, Image string }
	must.Do(t, yaml.Unmarshal([]byte(loaded.Metadata.Annotations["artifacthub.io/images"]), &images))
	var listed []string
	for _, image := range images {
		listed = append(listed, image.Image)
	}
	slices.Sort(listed)
	programs := must.Get(os.ReadDir("../cmd"))(t)
	var released []string
	for _, program := range programs {
		released = append(released, "ghcr.io/refvol/"+program.Name()+":"+loaded.Metadata.AppVersion)
	}
	if !slices.Equal(listed, released) {
		t.Errorf("the metadata lists %q, the release has %q", listed, released)
	}
	if named := imagesOf(t, values{}); !slices.Equal(named, listed) {
		t.Errorf("the chart installs %q, the metadata lists %q", named, listed)
	}
}

// imagesOf returns all images of a release with the sidecar's policy.
func imagesOf(t *testing.T, overrides values) []string {
	t.Helper()
	restart, _ := overrides["restart"].(values)
	if restart == nil {
		restart = values{}
	}
	restart["enabled"], overrides["restart"] = true, restart
	manifests, hooks := chartTexts(t, newest, overrides)
	images := regexp.MustCompile(`(?:ghcr\.io|r\.example\.com)/[\w/.:@-]+`).FindAllString(string(manifests)+string(hooks), -1)
	slices.Sort(images)
	return slices.Compact(images)
}

// TestChartImages: the sidecar's image and that of the check before an uninstall are beside the plugin's, unless the values say others.
func TestChartImages(t *testing.T) {
	digest, own := "sha256:"+strings.Repeat("0a", 32), "ghcr.io/refvol/"
	check, notify, plugin := own+"kubectl-refvol:v0.1.0", own+"refvol-notify:v0.1.0", own+"refvol-plugin:v0.1.0"
	of := func(program, repository, key, value string) values {
		image := values{key: value}
		if repository != "" {
			image["repository"] = repository
		}
		return values{program: values{"image": image}}
	}
	for _, test := range []struct {
		overrides values
		want      []string
	}{
		{
			values{"image": values{"registry": "r.example.com/", "repository": "mirror/plugin", "tag": "v9"}},
			[]string{"r.example.com/mirror/kubectl-refvol:v9", "r.example.com/mirror/plugin:v9", "r.example.com/mirror/refvol-notify:v9"},
		},
		{
			values{"image": values{"repository": "plugin", "tag": "v9"}},
			[]string{"ghcr.io/kubectl-refvol:v9", "ghcr.io/plugin:v9", "ghcr.io/refvol-notify:v9"},
		},
		{of("uninstallCheck", "own/check", "digest", digest), []string{"ghcr.io/own/check@" + digest, notify, plugin}},
		{of("restart", "own/notify", "digest", digest), []string{"ghcr.io/own/notify@" + digest, check, plugin}},
		{of("restart", "", "tag", "v2-patched"), []string{check, own + "refvol-notify:v2-patched", plugin}},
	} {
		if got := imagesOf(t, test.overrides); !slices.Equal(got, test.want) {
			t.Errorf("%v: the images are %q, want %q", test.overrides, got, test.want)
		}
	}
}

// TestChartWithoutFiles: a chart that lost its files does not render.
func TestChartWithoutFiles(t *testing.T) {
	loaded := must.Get(loader.LoadDir(chart))(t)
	loaded.Files = nil
	const says = "in a checkout run make chart"
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.KubeVersion = common.KubeVersion{Version: newest}
	if _, _, err := renderOn(loaded, capabilities, nil); err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("without the files: %v, want %q", err, says)
	}
}

// TestChartFilesAreCopies: what the chart has of deploy/ as plain files equals that. TestComponents notices one that is missing.
func TestChartFilesAreCopies(t *testing.T) {
	top := filepath.Join(chart, "files")
	must.Do(t, filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		got, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, top+"/")
		if want, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) || !entry.Type().IsRegular() {
			t.Errorf("%s is not what deploy/%s is: run make chart (%v)", path, name, err)
		}
		return nil
	}))
}
