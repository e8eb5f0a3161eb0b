package volume

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Names of attributes that are parts of fields' paths.
const (
	attrVolume    = "volume"
	attrNamespace = "namespace"
	attrItems     = "items"
	attrSources   = "sources"
)

const noKey = "must name a key of the object"

// parser turns attributes into a spec. It lives for one call of Parse.
type parser struct {
	decoder
	given map[string]string
	pod   Pod
	// across says that refs may name other namespaces than the pod's.
	across bool
	// volumes holds where each of the pod's own volumes was named, and versions where the file of versions was, or "".
	volumes  map[string]string
	versions string
}

// Option changes what Parse accepts.
type Option func(*parser)

// AcrossNamespaces lets refs name other namespaces than the pod's. Whether the pod may
// have those objects is not for Parse to say.
func AcrossNamespaces() Option { return func(p *parser) { p.across = true } }

// Parse turns the attributes of a pod's volume into a validated Spec with defaults
// applied. volumeContext may hold the whole volume context; the kubelet's own keys
// are passed over. pod is whom the volume is for: its namespace is where names without
// one are looked up, and without AcrossNamespaces the only one.
//
// The error lists everything that is wrong, each with the field's path, the shape
// of the bad value and what would be right.
func Parse(volumeContext map[string]string, pod Pod, options ...Option) (*Spec, error) {
	p := &parser{given: Attributes(volumeContext), pod: pod, volumes: map[string]string{}}
	for _, option := range options {
		option(p)
	}
	size := 0
	for name, value := range p.given {
		size += len(name) + len(value)
	}
	if size > MaxAttributesSize {
		return nil, field.TooLong(field.NewPath("volumeAttributes"), "", MaxAttributesSize)
	}
	values, err := json.Marshal(p.given)
	if err != nil {
		return nil, fmt.Errorf("write the volume attributes as JSON: %w", err)
	}
	spec := p.spec(values)
	if err := p.err(); err != nil {
		return nil, err
	}
	return spec, nil
}

func (p *parser) spec(values []byte) *Spec {
	a := attributes{UpdatePolicy: UpdateLive, WriteStrategy: WriteAtomic, OnDelete: DeleteKeep}
	p.decode(nil, values, &a)
	spec := &Spec{UpdatePolicy: a.UpdatePolicy, WriteStrategy: a.WriteStrategy, OnDelete: a.OnDelete}
	if a.DefaultMode != nil {
		spec.DefaultMode = p.mode(field.NewPath("defaultMode"), &intstr.IntOrString{Type: intstr.String, StrVal: *a.DefaultMode})
	}
	spec.UID, spec.GID = p.id("uid", a.UID), p.id("gid", a.GID)
	supported(p, field.NewPath("updatePolicy"), a.UpdatePolicy, UpdateLive, UpdatePinned)
	supported(p, field.NewPath("writeStrategy"), a.WriteStrategy, WriteAtomic, WriteInPlace)
	supported(p, field.NewPath("onDelete"), a.OnDelete, DeleteKeep, DeleteRemove)
	spec.Spread = p.spread(a.Spread, spec.Pinned())
	if a.Sources != nil {
		spec.Sources = p.listForm(*a.Sources)
	} else {
		spec.Sources = p.shortForm(a)
	}
	for _, err := range spec.checkCollisions() {
		p.add(err)
	}
	if err := spec.CheckReferences(); err != nil {
		p.add(err)
	}
	return spec
}

// id reads a decimal user or group id; nil if the attribute is not there.
func (p *parser) id(name string, text *string) *int64 {
	if text == nil {
		return nil
	}
	id, err := strconv.ParseUint(*text, 10, 31)
	if err != nil {
		p.add(field.Invalid(field.NewPath(name), shorten(*text), fmt.Sprintf("must be a decimal number from 0 to %d", math.MaxInt32)))
	}
	n := int64(id)
	return &n
}

// spread reads the attribute spread; 0 if it is not there.
func (p *parser) spread(text *string, pinned bool) time.Duration {
	if text == nil {
		return 0
	}
	at := field.NewPath("spread")
	window, err := time.ParseDuration(*text)
	switch {
	case err != nil || window < minSpread || window > maxSpread:
		p.add(field.Invalid(at, shorten(*text), "must be a duration from 1s to 1h, as 5m"))
	case pinned:
		p.add(field.Forbidden(at, "must not be set beside updatePolicy Pinned: such a volume takes up no change"))
	}
	return window
}

// supported refuses a value that is none of some.
func supported[T ~string](p *parser, at *field.Path, value T, values ...T) {
	if !slices.Contains(values, value) {
		p.add(field.NotSupported(at, shorten(string(value)), values))
	}
}

// invalid refuses a value of which Kubernetes' validation found problems.
func (p *parser) invalid(at *field.Path, value any, problems []string) {
	if len(problems) > 0 {
		p.add(field.Invalid(at, value, strings.Join(problems, "; ")))
	}
}

// valid refuses a text that is empty, or of which Kubernetes' validation finds problems.
func (p *parser) valid(at *field.Path, text, required string, check func(string) []string) {
	if text == "" {
		p.add(field.Required(at, required))
		return
	}
	p.invalid(at, shorten(text), check(text))
}

// set returns which of some attributes are given.
func (p *parser) set(names ...string) []string {
	return slices.DeleteFunc(names, func(name string) bool {
		_, ok := p.given[name]
		return !ok
	})
}

// listForm reads the attribute `sources`.
func (p *parser) listForm(text string) []Source {
	for _, name := range p.set("configMap", "secret", attrVolume, attrNamespace, "optional", attrItems) {
		p.add(field.Forbidden(field.NewPath(name), "must not be set beside sources: name the object in sources"))
	}
	at, before := field.NewPath(attrSources), len(p.errs)
	elements := p.list(at, text)
	if len(elements) == 0 && len(p.errs) == before {
		p.add(field.Required(at, "must have at least one source"))
	}
	var sources []Source
	for i, element := range elements {
		if source, ok := p.source(at.Index(i), element); ok {
			sources = append(sources, source)
		}
	}
	return sources
}

// source reads one element of `sources`.
func (p *parser) source(at *field.Path, value []byte) (Source, bool) {
	var from source
	if !p.oneOf(at, value, &from) {
		return Source{}, false
	}
	var source Source
	switch {
	case from.ConfigMap != nil:
		at = at.Child("configMap")
		source.Projection = p.projection(at, *from.ConfigMap, ConfigMap)
	case from.Secret != nil:
		at = at.Child("secret")
		source.Projection = p.projection(at, *from.Secret, Secret)
	case from.Volume != nil:
		at = at.Child("volume")
		var named podVolume
		if p.decode(at, *from.Volume, &named) {
			source.Volume = p.volume(at.Child("name"), named.Name)
		}
	case from.Env != nil:
		at = at.Child("env")
		source.Env = p.envSource(at, *from.Env)
	case from.PodEnv != nil:
		at = at.Child("podEnv")
		source.PodEnv = p.podEnvSource(at, *from.PodEnv)
	case from.Join != nil:
		at = at.Child("join")
		source.Join = p.join(at, *from.Join)
	case from.Versions != nil:
		at = at.Child("versions")
		source.Versions = p.versionsFile(at, *from.Versions)
	}
	source.Field = at.String()
	return source, true
}

func (p *parser) projection(at *field.Path, value []byte, kind Kind) *Projection {
	from := projection{objectRef: objectRef{Namespace: p.pod.Namespace}}
	if !p.decode(at, value, &from) {
		return &Projection{}
	}
	return &Projection{Ref: p.ref(at, kind, from.objectRef), Items: p.items(at.Child("items"), from.Items), Optional: from.Optional}
}

// join reads a source of kind `join`.
func (p *parser) join(at *field.Path, value []byte) *JoinFile {
	var from join
	file := &JoinFile{}
	if !p.decode(at, value, &from) {
		return file
	}
	file.Path, file.Mode = p.path(at.Child("path"), from.Path), p.mode(at.Child("mode"), from.Mode)
	if len(from.Sources) == 0 {
		p.add(field.Required(at.Child(attrSources), "must have at least one source"))
	}
	for i, value := range from.Sources {
		var part joinSource
		at := at.Child(attrSources).Index(i)
		if !p.oneOf(at, value, &part) {
			continue
		}
		var key *Reference
		if part.Secret != nil {
			key = p.keyRef(at.Child("secret"), *part.Secret, Secret)
		} else {
			key = p.keyRef(at.Child("configMap"), *part.ConfigMap, ConfigMap)
		}
		if key != nil {
			file.Parts = append(file.Parts, *key)
		}
	}
	return file
}

// versionsFile reads a source of kind `versions`.
func (p *parser) versionsFile(at *field.Path, value []byte) *VersionsFile {
	var from versions
	if p.versions != "" {
		p.add(field.Forbidden(at, "must not be there twice: "+p.versions+" is the same file"))
	}
	p.versions = at.String()
	if !p.decode(at, value, &from) {
		return &VersionsFile{}
	}
	return &VersionsFile{Path: p.path(at.Child("path"), from.Path), Mode: p.mode(at.Child("mode"), from.Mode)}
}

// items reads a list of items. One that is refused keeps its place in the list, with an empty path.
func (p *parser) items(at *field.Path, values []json.RawMessage) []Item {
	var items []Item
	for i, value := range values {
		items = append(items, Item{})
		at, from := at.Index(i), item{}
		if !p.decode(at, value, &from) {
			continue
		}
		p.valid(at.Child("key"), from.Key, noKey, utilvalidation.IsConfigMapKey)
		items[i] = Item{Key: from.Key, Path: p.path(at.Child("path"), from.Path), Mode: p.mode(at.Child("mode"), from.Mode), User: from.User}
		if from.User != nil {
			p.invalid(at.Child("user"), *from.User, utilvalidation.IsValidUserID(*from.User))
		}
	}
	return items
}

// path returns the clean form of a file's path, "" if it was refused.
func (p *parser) path(at *field.Path, path string) string {
	clean, err := CleanPath(path)
	switch {
	case path == "":
		p.add(field.Required(at, "must be a relative path"))
	case err != nil:
		p.add(field.Invalid(at, shorten(path), err.Error()))
	}
	return clean
}

// mode reads a mode: an integer as in Kubernetes, or an octal string.
func (p *parser) mode(at *field.Path, from *intstr.IntOrString) *fs.FileMode {
	var mode fs.FileMode
	var err error
	switch {
	case from == nil:
		return nil
	case from.Type == intstr.String:
		if mode, err = ParseMode(from.StrVal); err != nil {
			p.add(field.Invalid(at, shorten(from.StrVal), err.Error()))
		}
	case from.IntVal < 0 || from.IntVal > 0o777:
		p.add(field.Invalid(at, from.IntVal, "must be an integer from 0 to 511 (octal 0777)"))
	default:
		mode = fs.FileMode(from.IntVal)
	}
	return &mode
}

// shortForm reads the attributes that name a single object or volume.
func (p *parser) shortForm(a attributes) []Source {
	given := p.set("configMap", "secret", attrVolume)
	switch {
	case len(given) > 1:
		p.add(field.Forbidden(field.NewPath(given[1]), fmt.Sprintf("must not be set beside %s: list both in sources", given[0])))
		return nil
	case len(given) == 0 && slices.ContainsFunc(p.errs, func(err *field.Error) bool { return err.Type == field.ErrorTypeForbidden }):
		return nil // what is unknown may be the one
	case len(given) == 0:
		p.add(field.Required(field.NewPath(attrSources), "one of configMap, secret, volume and sources must be set"))
		return nil
	}
	at := field.NewPath(given[0])
	if a.Volume != nil {
		for _, name := range p.set(attrNamespace, "optional", attrItems) {
			p.add(field.Forbidden(field.NewPath(name), "must not be set beside volume: what the pod's own volume says counts"))
		}
		return []Source{{Field: at.String(), Volume: p.volume(at, *a.Volume)}}
	}
	projection := &Projection{Ref: Ref{Kind: ConfigMap, Namespace: p.pod.Namespace, Name: p.given[given[0]]}}
	if a.Secret != nil {
		projection.Ref.Kind = Secret
	}
	p.name(at, projection.Ref)
	if a.Namespace != nil {
		projection.Ref.Namespace = *a.Namespace
		p.namespace(field.NewPath(attrNamespace), *a.Namespace)
	}
	if a.Optional != nil {
		supported(p, field.NewPath("optional"), *a.Optional, "false", "true")
		projection.Optional = *a.Optional == "true"
	}
	if a.Items != nil {
		at := field.NewPath(attrItems)
		projection.Items = p.items(at, p.list(at, *a.Items))
	}
	return []Source{{Field: at.String(), Projection: projection}}
}

// ref returns the object that the fields at a path name.
func (p *parser) ref(at *field.Path, kind Kind, from objectRef) Ref {
	ref := Ref{Kind: kind, Namespace: from.Namespace, Name: from.Name}
	p.name(at.Child("name"), ref)
	p.namespace(at.Child(attrNamespace), from.Namespace)
	return ref
}

func (p *parser) name(at *field.Path, ref Ref) {
	p.valid(at, ref.Name, fmt.Sprintf("must name a %s", ref.Kind), func(name string) []string { return validation.NameIsDNSSubdomain(name, false) })
}

func (p *parser) namespace(at *field.Path, namespace string) {
	if namespace == p.pod.Namespace {
		return
	}
	before := len(p.errs)
	p.valid(at, namespace, "must name a namespace; leave the field out for the pod's own", func(name string) []string { return validation.ValidateNamespaceName(name, false) })
	if len(p.errs) == before && !p.across {
		p.add(field.Invalid(at, namespace, fmt.Sprintf("must be the pod's own namespace %q: this node's plugin shows no objects of others (--cross-namespace)", p.pod.Namespace)))
	}
}

// volume reads the name of one of the pod's own volumes. Two sources must not show the
// same one: what a volume may show is bounded by the number of its sources.
func (p *parser) volume(at *field.Path, name string) string {
	p.valid(at, name, "must name a volume of the pod", utilvalidation.IsDNS1123Label)
	if other, again := p.volumes[name]; again && name != "" {
		p.add(field.Invalid(at, shorten(name), fmt.Sprintf("must not be shown twice: %s shows it", other)))
	}
	p.volumes[name] = at.String()
	return name
}

// envFile reads what env and podEnv have in common.
func (p *parser) envFile(at *field.Path, from envFile) (path string, mode *fs.FileMode, format EnvFormat) {
	supported(p, at.Child("format"), from.Format, EnvDotenv, EnvShell)
	return p.path(at.Child("path"), from.Path), p.mode(at.Child("mode"), from.Mode), from.Format
}
