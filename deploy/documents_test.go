package deploy

import (
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/strvals"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/refvol/refvol/internal/doclines"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/check"
)

// plain returns a document with each run of spaces and line ends as one space.
func plain(text string) string { return strings.Join(strings.Fields(text), " ") }

// TestDocumentedHelm: each command of helm on the release names its namespace. Without that helm finds no release.
func TestDocumentedHelm(t *testing.T) {
	command := regexp.MustCompile(`helm (?:install|upgrade|uninstall|rollback) refvol [^$]{0,120}`)
	found := 0
	for document, text := range documents(t) {
		for _, got := range command.FindAllString(plain(text), -1) {
			found++
			if !strings.Contains(got, "--namespace refvol-system") {
				t.Errorf("%s: %q names no namespace", document, got)
			}
		}
	}
	if found == 0 {
		t.Error("no document has such a command")
	}
}

// TestDocumentedAlertTimes: where a document says after what time an alert comes, that is the time of the rule.
func TestDocumentedAlertTimes(t *testing.T) {
	stale := regexp.MustCompile(`^refvol_object_staleness_max_seconds\S* > (\d+)$`)
	times := map[string]time.Duration{}
	for _, group := range alerts(t) {
		for _, rule := range group.Rules {
			wait := must.Get(time.ParseDuration(string(*rule.For)))(t)
			if seconds := stale.FindStringSubmatch(strings.TrimSpace(strings.ReplaceAll(rule.Expr.String(), ", ", ","))); seconds != nil {
				n, _ := strconv.Atoi(seconds[1])
				wait += time.Duration(n) * time.Second
			}
			times[rule.Alert] = wait
		}
	}
	says := regexp.MustCompile("`(Refvol[A-Za-z]+)`(?: fires)? after (\\S+) minutes")
	found := 0
	for document, text := range documents(t) {
		for _, got := range says.FindAllStringSubmatch(plain(text), -1) {
			found++
			if want := strconv.Itoa(int(times[got[1]].Minutes())); got[2] != want {
				t.Errorf("%s says that %s comes after %s minutes, want %s", document, got[1], got[2], want)
			}
		}
	}
	if found < 2 {
		t.Errorf("documents have %d times of alerts, want 2 or more", found)
	}
}

// TestDocumentedImage: the kustomization of docs/install.md has the image that docs/getting-started.md pushes.
func TestDocumentedImage(t *testing.T) {
	texts := documents(t)
	pushed := regexp.MustCompile(`docker push (\S+):(\S+)`).FindStringSubmatch(texts["docs/getting-started.md"])
	used := regexp.MustCompile(`newName: (\S+), newTag: (\S+)}`).FindStringSubmatch(texts["docs/install.md"])
	if pushed == nil || used == nil || !slices.Equal(pushed[1:], used[1:]) {
		t.Errorf("the image %q is pushed, and %q is installed", pushed, used)
	}
}

// TestDocumentedNodeLabel: the command that labels the nodes with the plugin finds its pods.
func TestDocumentedNodeLabel(t *testing.T) {
	command := regexp.MustCompile(`label nodes \$\(kubectl --namespace (\S+) get pods --selector (\S+)=(\S+) .*?\) refvol\.dev/plugin=true `).
		FindStringSubmatch(plain(documents(t)["docs/live-namespaces.md"]))
	if command == nil {
		t.Fatal("docs/live-namespaces.md has no such command")
	}
	plugin := only[*appsv1.DaemonSet](t, renderWith(t, nil))
	if command[1] != plugin.Namespace || plugin.Spec.Template.Labels[command[2]] != command[3] {
		t.Errorf("the command takes pods with %q, and the plugin's have %v", command[1:], plugin.Spec.Template.Labels)
	}
}

// TestManifestsNameDocuments: a document that a manifest names exists, with the heading.
func TestManifestsNameDocuments(t *testing.T) {
	texts := documents(t)
	named := regexp.MustCompile(`\b(docs/[a-z-]+\.md)(?:#([a-z0-9-]+))?`)
	must.Do(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !slices.Contains([]string{".yaml", ".tpl", ".txt"}, filepath.Ext(path)) {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, got := range named.FindAllStringSubmatch(string(text), -1) {
			if document, ok := texts[got[1]]; !ok || got[2] != "" && !slices.Contains(anchors(document), got[2]) {
				t.Errorf("%s names %s, which is not there", path, got[0])
			}
		}
		return nil
	}))
}

// TestDocumentedBlocks: each block of code has a language, and commands stand without a prompt.
func TestDocumentedBlocks(t *testing.T) {
	languages := []string{"go", "json", "sh", "text", "yaml"}
	for document, text := range documents(t) {
		for _, part := range doclines.Parts(text) {
			switch {
			case part.IsBlock && !slices.Contains(languages, part.Language):
				t.Errorf("%s:%d: the language is %q, want one of %q", document, part.Line, part.Language, languages)
			case part.IsBlock && regexp.MustCompile(`(?m)^\$ `).MatchString(part.Text):
				t.Errorf("%s:%d: a command has a prompt", document, part.Line)
			}
		}
	}
}

// TestDocumentedSuites: in CONTRIBUTING.md each suite exists, and so do the files in brackets behind it. The tier of a promise is the highest
// one of its suites.
func TestDocumentedSuites(t *testing.T) {
	tiers := []string{"unit", "integration", "kernels", "kind"}
	_, table, _ := strings.Cut(documents(t)["CONTRIBUTING.md"], "\n| promise | tier | suites |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(table, "\n")
	if len(rows) < 20 {
		t.Fatalf("CONTRIBUTING.md has %d promises", len(rows))
	}
	for _, row := range rows {
		cells, highest := strings.Split(row, " | "), -1
		if len(cells) != 3 {
			t.Errorf("not a promise, a tier and suites: %s", row)
			continue
		}
		suites, _, _ := strings.Cut(cells[2], ";")
		for _, suite := range regexp.MustCompile("`([^`]+)`(?: \\(([^)]+)\\))?").FindAllStringSubmatch(suites, -1) {
			tier, dir := "integration", filepath.Join("../e2e/suites", suite[1])
			switch {
			case suite[1] == "deploy":
				dir = "../deploy"
			case strings.HasPrefix(suite[1], "pkg/"), strings.HasPrefix(suite[1], "internal/"):
				tier, dir = "unit", filepath.Join("..", suite[1])
			case suite[1] == "kind":
				tier, dir = suite[1], filepath.Join(dir, "suite")
			case suite[1] == "kernels":
				tier = suite[1]
			}
			for _, file := range append(strings.Split(strings.ReplaceAll(suite[2], "`", ""), ", "), "") {
				if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
					t.Errorf("%s: %v", row, err)
				}
			}
			highest = max(highest, slices.Index(tiers, tier))
		}
		if highest < 0 || cells[1] != tiers[highest] {
			t.Errorf("the tier is not the highest of its suites: %s", row)
		}
	}
}

// TestNetworkPolicyAddresses renders both ways in which docs/install.md names the API server's addresses: the plugin's pod
// reaches these, and without them any.
func TestNetworkPolicyAddresses(t *testing.T) {
	text := documents(t)["docs/install.md"]
	set := regexp.MustCompile(`--set '(networkPolicy\.addresses=[^']+)'`).FindStringSubmatch(text)
	blocks := doclines.Blocks(text, "yaml")
	patch := slices.IndexFunc(blocks, func(block string) bool { return strings.HasPrefix(block, "patches:\n- target: {kind: NetworkPolicy, ") })
	if set == nil || patch < 0 {
		t.Fatal("docs/install.md does not say how")
	}
	want := []networkingv1.NetworkPolicyPeer{
		{IPBlock: &networkingv1.IPBlock{CIDR: "10.96.0.1/32"}}, {IPBlock: &networkingv1.IPBlock{CIDR: "192.0.2.10/32"}},
	}
	overrides := values{"networkPolicy": values{"enabled": true}}
	for _, want := range [][]networkingv1.NetworkPolicyPeer{nil, want} {
		egress := only[*networkingv1.NetworkPolicy](t, chartObjects(t, newest, overrides)).Spec.Egress
		if len(egress) != 1 || !reflect.DeepEqual(egress[0].To, want) || len(egress[0].Ports) != 2 {
			t.Errorf("with %v the egress is %s, want it to %s", overrides, asJSON(t, egress), asJSON(t, want))
		}
		must.Do(t, strvals.ParseInto(set[1], overrides))
	}
	dir := kustomization(t, []string{"network-policy"}, blocks[patch])
	egress := only[*networkingv1.NetworkPolicy](t, render(t, dir)).Spec.Egress
	if len(egress) != 1 || !reflect.DeepEqual(egress[0].To, want) || len(egress[0].Ports) != 2 {
		t.Errorf("with the patch the egress is %s, want it to %s", asJSON(t, egress), asJSON(t, want))
	}
}

// TestReferencesOfTheShortForm renders the kustomization of docs/volume-sources.md around a Pod and a
// Deployment, whose attributes get the names that kustomize generates.
func TestReferencesOfTheShortForm(t *testing.T) {
	dir := must.Get(filepath.EvalSymlinks(t.TempDir()))(t)
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
		must.Do(t, os.WriteFile(filepath.Join(dir, f[1]), []byte(f[2]), 0o600))
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

// TestDocumentedMake: the documents name targets that the Makefile has.
func TestDocumentedMake(t *testing.T) {
	makefile := must.Get(os.ReadFile("../Makefile"))(t)
	for _, line := range doclines.Find(t, "..", "make", 18) {
		for _, word := range line.Args[1:] {
			if !strings.Contains(word, "=") && !regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(word)+`:`).Match(makefile) {
				t.Errorf("%s: the Makefile has no %s", &line, word)
			}
		}
	}
}

// TestDocumentedValues: what the documents set with helm are values of the chart.
func TestDocumentedValues(t *testing.T) {
	loaded := must.Get(load())(t)
	found := 0
	for document, text := range documents(t) {
		for _, set := range regexp.MustCompile(`--set (?:'([^']+)'|([^\s'`+"`"+`\\]+))`).FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(set[2], "canary") { // of a chart of the reader's
				continue
			}
			found++
			values, err := strvals.Parse(set[1] + set[2])
			if err != nil {
				t.Errorf("%s: %s: %v", document, set[0], err)
				continue
			}
			all, err := util.CoalesceValues(loaded, values)
			if err == nil {
				err = util.ValidateAgainstSchema(loaded, all)
			}
			if err != nil {
				t.Errorf("%s: %s: %v", document, set[0], err)
			}
		}
	}
	if found < 5 {
		t.Errorf("the documents set values %d times", found)
	}
}

// TestDocumentedLabels: kubectl label and annotate take the objects first, and then the pairs.
func TestDocumentedLabels(t *testing.T) {
	for _, line := range doclines.Find(t, "..", "kubectl", 100) {
		at := max(slices.Index(line.Args, "label"), slices.Index(line.Args, "annotate"))
		if at < 0 {
			continue
		}
		hasPair := false
		for i, word := range line.Args[at+1:] {
			isFlag := strings.HasPrefix(word, "-") || slices.Contains([]string{"-n", "--namespace", "-o", "-f"}, line.Args[at+i])
			isPair := strings.Contains(word, "=") && !strings.HasPrefix(word, "$(") // a command gives names
			if !isFlag && hasPair && !isPair {
				t.Errorf("%s: %s comes after a pair", &line, word)
			}
			hasPair = hasPair || !isFlag && isPair
		}
	}
}

// TestReadmeExample holds the pods of the Deployment that a newcomer sees first to what the examples
// are held to.
func TestReadmeExample(t *testing.T) {
	readme := must.Get(os.ReadFile("../README.md"))(t)
	blocks := doclines.Blocks(string(readme), "yaml")
	if len(blocks) == 0 {
		t.Fatal("README.md has no example")
	}
	for _, block := range blocks {
		checkImages(t, only[*appsv1.Deployment](t, decode(t, "README.md", []byte(block))).Spec.Template.Spec)
		checkVolumes(t, check.Options{}, []byte(block))
	}
}

func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../site/*.md", "../e2e/*.md", "../e2e/*/*.md", "../e2e/*/*/*.md", "../deploy/*/*.md", "../deploy/*/*/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			text := must.Get(os.ReadFile(file))(t)
			texts[strings.TrimPrefix(file, "../")] = string(text)
		}
	}
	return texts
}

// TestDocumentedLinks has every file that a document links to exist, with the heading.
func TestDocumentedLinks(t *testing.T) {
	texts := documents(t)
	for document, text := range texts {
		for _, link := range regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]+))?\)`).FindAllStringSubmatch(text, -1) {
			target := document
			if link[1] != "" {
				target = filepath.Join(filepath.Dir(document), link[1])
			}
			if _, err := os.Stat(filepath.Join("..", target)); err != nil {
				t.Errorf("%s: %v", document, err)
			}
			if link[2] == "" {
				continue
			}
			headings := anchors(texts[target])
			if i := slices.Index(headings, link[2]); i < 0 || slices.Contains(headings[i+1:], link[2]) {
				t.Errorf("%s links to #%s of %s, which has no such heading, or two", document, link[2], target)
			}
		}
	}
}

// anchors returns what links to the headings of a document end with.
func anchors(text string) []string {
	var all []string
	for _, part := range doclines.Parts(text) {
		if part.IsBlock {
			continue
		}
		for _, heading := range regexp.MustCompile("(?m)^#+ (.*)$").FindAllStringSubmatch(part.Text, -1) {
			plain := regexp.MustCompile(`[^\w -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
			all = append(all, strings.ReplaceAll(plain, " ", "-"))
		}
	}
	return all
}
