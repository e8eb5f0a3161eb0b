package check

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// maxFileSize limits one file in bytes. It has room for some thousand manifests.
const maxFileSize = 32 << 20

// manifest is one document of a file, or one item of a List.
type manifest struct {
	Location
	text []byte
	// hasPods means that its kind has pods.
	hasPods bool
	// isForeign means that its group is not one of Kubernetes' own.
	isForeign bool
	// problem says why it cannot be read, or is "".
	problem string
}

// header has the fields that every manifest has.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name         string `json:"name"`
		GenerateName string `json:"generateName"`
		Namespace    string `json:"namespace"`
	} `json:"metadata"`
	// Items is a list in a List. In other kinds it may be anything.
	Items json.RawMessage `json:"items"`
}

// readManifests reads all manifests of a file. The error is about the file as a whole.
func readManifests(file string, r io.Reader) ([]manifest, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxFileSize+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	if len(text) > maxFileSize {
		return nil, fmt.Errorf("read %s: has more than %d MiB", file, maxFileSize>>20)
	}
	var all []manifest
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for number := 1; ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		place := Location{File: file, Document: number}
		if err != nil {
			// Only a separator can be wrong here. Where the next document starts is unknown.
			const problem = "is not a manifest: only a comment may follow ---"
			return append(all, manifest{Location: place, problem: problem}), nil //nolint:nilerr // The error repeats the line.
		}
		for _, text := range splitJSON(document) {
			place.Document = number
			if found := readDocument(place, text); len(found) > 0 {
				all = append(all, found...)
				number++
			}
		}
	}
}

// splitJSON splits a document of several JSON objects in a row, as kubectl does. It returns any other document unchanged.
func splitJSON(document []byte) [][]byte {
	var all [][]byte
	decoder := json.NewDecoder(bytes.NewReader(document))
	for {
		var object json.RawMessage
		switch err := decoder.Decode(&object); {
		case errors.Is(err, io.EOF) && len(all) > 1:
			return all
		case err != nil || object[0] != '{':
			return [][]byte{document}
		}
		all = append(all, object)
	}
}

// readDocument reads one document. It returns none if the document is empty, and several if it is a List.
func readDocument(at Location, text []byte) []manifest {
	var h *header
	if err := yaml.Unmarshal(text, &h); err != nil {
		return []manifest{{Location: at, problem: unreadable(err)}}
	}
	alone, err := isAlone(text)
	if err != nil {
		return []manifest{{Location: at, problem: unreadable(err)}}
	}
	if h == nil && alone {
		return nil
	}
	m := manifest{Location: at}
	if h != nil {
		m = identify(at, h, text)
	}
	if !alone {
		m.problem = "is followed by another manifest that is not separated from it by ---"
		return []manifest{m}
	}
	_, err = yaml.YAMLToJSONStrict(text)
	if !h.isList() {
		if err != nil && !m.hasPods && m.problem == "" { // for kinds with pods, the decoder says which field
			m.problem = "repeats a field: two manifests must be separated by ---"
		}
		return []manifest{m}
	}
	if err != nil {
		m.problem = unreadable(err)
		return []manifest{m}
	}
	all := readItems(at, h)
	if len(all) == 0 {
		return []manifest{m} // ignored, like all manifests without pods
	}
	return all
}

// readItems reads the items of a list, including those of nested lists.
func readItems(at Location, h *header) []manifest {
	var items []json.RawMessage
	if err := json.Unmarshal(h.Items, &items); err != nil && len(h.Items) > 0 {
		m := identify(at, h, nil)
		m.problem = "items of a List must be a list"
		return []manifest{m}
	}
	var all []manifest
	for _, item := range items {
		at.Item++
		var own header
		if err := json.Unmarshal(item, &own); err != nil {
			all = append(all, manifest{Location: at, problem: unreadable(err)})
			continue
		}
		if of, ok := listed(h.gvk()); ok && own.APIVersion == "" && own.Kind == "" {
			// An API server leaves apiVersion and kind out.
			own.APIVersion, own.Kind = of.GroupVersion().String(), of.Kind
			item = withKind(item, of)
		}
		if !own.isList() {
			all = append(all, identify(at, &own, item))
			continue
		}
		inner := at
		inner.Item--
		found := readItems(inner, &own)
		if len(found) == 0 {
			found = []manifest{identify(at, &own, item)}
		}
		all = append(all, found...)
		at.Item = all[len(all)-1].Item
	}
	return all
}

// withKind returns an item with its apiVersion and kind.
func withKind(item json.RawMessage, gvk schema.GroupVersionKind) json.RawMessage {
	head := fmt.Sprintf(`{"apiVersion":%q,"kind":%q`, gvk.GroupVersion(), gvk.Kind)
	rest := bytes.TrimSpace(bytes.TrimPrefix(bytes.TrimSpace(item), []byte("{")))
	if !bytes.HasPrefix(rest, []byte("}")) {
		head += ","
	}
	return append([]byte(head), rest...)
}

// gvk returns the manifest's kind. Group and version are empty if they cannot be parsed.
func (h *header) gvk() schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(h.APIVersion, h.Kind)
}

// isList reports whether the items are manifests.
func (h *header) isList() bool {
	if h.APIVersion == "v1" && h.Kind == "List" {
		return true
	}
	_, ok := listed(h.gvk())
	return ok
}

// isAlone reports whether nothing follows the first value of a document, which may be empty. The decoder of manifests stops there, for
// example at the end marker of YAML, or in JSON without separators. The error is about the first value: if only one of the two decoders can
// read a value, that must not hide what follows.
func isAlone(text []byte) (bool, error) {
	var first, second yamlv3.Node
	decode := yamlv3.NewDecoder(bytes.NewReader(text))
	if err := decode.Decode(&first); err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	return errors.Is(decode.Decode(&second), io.EOF), nil
}

func identify(at Location, h *header, text []byte) manifest {
	at.Kind, at.Namespace, at.Name = h.Kind, h.Metadata.Namespace, h.Metadata.Name
	if at.Name == "" && h.Metadata.GenerateName != "" {
		at.Name = h.Metadata.GenerateName + "*"
	}
	if h.APIVersion == "" || h.Kind == "" {
		return manifest{Location: at, problem: "has no apiVersion and kind"}
	}
	gv, err := schema.ParseGroupVersion(h.APIVersion)
	if err != nil {
		return manifest{Location: at, problem: "apiVersion is not of the form group/version"}
	}
	hasPods, err := kindOf(gv.WithKind(h.Kind))
	if err != nil {
		return manifest{Location: at, problem: err.Error()}
	}
	return manifest{Location: at, text: text, hasPods: hasPods, isForeign: !scheme.Scheme.IsGroupRegistered(gv.Group)}
}

// decode returns the object of a manifest that has pods, and the parts of the manifest that the API server would refuse or drop. If the
// object is nil, the problems say why.
func (m *manifest) decode(decoder runtime.Decoder) (object runtime.Object, problems []string) {
	object, _, err := decoder.Decode(m.text, nil, nil)
	if err == nil {
		return object, nil
	}
	strict, ok := runtime.AsStrictDecodingError(err)
	if !ok {
		problem := oneLine(err.Error())
		if strings.Contains(problem, "volumeAttributes of type string") {
			problem += ": each of volumeAttributes is a string: quote numbers and booleans"
		}
		return nil, []string{problem}
	}
	for _, err := range strict.Errors() {
		problems = append(problems, oneLine(err.Error()))
	}
	return object, problems
}

// lineNumber finds the line number in an error of the YAML parser. It only matches at the start, because the rest may quote the text.
var lineNumber = regexp.MustCompile(`^(?:error converting YAML to JSON: )?yaml: (?:unmarshal errors:\s+)?(line \d+):`)

// unreadable returns a message for an error about any text, which may be a Secret. So it repeats neither the text nor an error that may
// quote it.
func unreadable(err error) string {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		what, _, _ := strings.Cut(wrong.Value, " ") // for a number, the rest is the number itself
		return strings.TrimSpace("is not a manifest: "+wrong.Field) + " must not be of type " + what
	}
	if found := lineNumber.FindStringSubmatch(err.Error()); found != nil {
		return "is not a manifest: not YAML or JSON in " + found[1]
	}
	return "is not a manifest: not YAML or JSON"
}

// oneLine joins the lines of an error.
func oneLine(message string) string { return strings.Join(strings.Fields(message), " ") }
