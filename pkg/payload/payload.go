// Package payload turns a volume's spec and the objects that it names into the
// tree of files that the volume shows.
//
// It owns the rules by which keys become paths, modes and owners, which are the
// kubelet's. It is pure: no file, clock or network. It must not know where objects
// come from or how a tree is written.
package payload

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/volume"
)

// Modes that a volume with an fsGroup adds, as the kubelet does for a read-only
// volume: the group may read every file and enter every directory, and what is
// made in a directory inherits its group.
const (
	directoryMode      fs.FileMode = 0o755
	groupFileMode      fs.FileMode = 0o440
	groupDirectoryMode             = 0o550 | fs.ModeSetgid
)

// maxMissing is how many missing things an error names. A spec may ask for
// thousands of keys, and the text ends up in an event and in logs.
const maxMissing = 32

// Options are what shapes a tree beside the spec and the objects.
type Options struct {
	// FSGroup owns every file and directory where it is not nil (the volume mount
	// group of a publish request), unless the spec names a group, and widens their
	// modes, unless the spec names an owner or a group.
	FSGroup *int64
	// ForgiveDeleted takes a required object that does not exist for an empty one. A
	// missing key of an object is missing all the same.
	ForgiveDeleted bool
	// Refused holds objects that the pod may not have: what a source names of them is
	// left out, required or not.
	Refused map[volume.Ref]bool
	// MaxFiles is how many keys, items and env files the sources may have together, 0 for any number.
	MaxFiles int
	// Pod and NodeName are what variables of an env file can name of the pod.
	Pod      volume.Pod
	NodeName string
}

// own gives a tree its owner and group, and says whether modes are to be widened
// for the group. Who asks for an owner gets the modes that it asks for.
func (o *Options) own(tree *volume.Payload, spec *volume.Spec) (widen bool) {
	if spec.UID != nil {
		tree.UID = int(*spec.UID)
	}
	switch {
	case spec.GID != nil:
		tree.GID = int(*spec.GID)
	case o.FSGroup != nil:
		tree.GID = int(*o.FSGroup)
	}
	return o.FSGroup != nil && spec.UID == nil && spec.GID == nil
}

// Missing is one required thing that does not exist.
type Missing struct {
	Ref volume.Ref
	// Key is empty where the whole object is missing.
	Key string
	// Field is where the pod's author asked for it.
	Field string
	// Env says that a variable asked for it.
	Env bool
	// Has names the first keys that the object has instead, "" for none.
	Has string
}

// String words what is missing as the kubelet does for its own volumes.
func (m Missing) String() string {
	switch {
	case m.Key == "":
		return fmt.Sprintf("%s: %s not found", m.Field, m.Ref)
	case m.Env:
		return fmt.Sprintf("%s: couldn't find key %s in %s %s/%s", m.Field, m.Key, m.Ref.Kind, m.Ref.Namespace, m.Ref.Name) + m.has()
	case m.Ref.Kind == volume.Secret:
		return fmt.Sprintf("%s: %s: references non-existent secret key: %s", m.Field, m.Ref, m.Key) + m.has()
	default:
		return fmt.Sprintf("%s: %s: configmap references non-existent config key: %s", m.Field, m.Ref, m.Key) + m.has()
	}
}

func (m Missing) has() string {
	if m.Has == "" {
		return ""
	}
	return " (it has " + m.Has + ")"
}

// MissingError tells which required objects and keys do not exist. Who waits for them keeps it.
type MissingError struct {
	// Missing is the first maxMissing of them, and after these one of each object that is not among them.
	Missing []Missing
	// Count is how many there are.
	Count int
}

// addKey counts a key that an object lacks.
func (e *MissingError) addKey(m Missing, object *volume.Object) {
	const few = 5
	if e.Count < maxMissing {
		keys := slices.Sorted(maps.Keys(object.Data))
		m.Has = strings.Join(keys[:min(few, len(keys))], ", ")
	}
	e.add(m)
}

// add counts m, and keeps it unless enough is kept.
func (e *MissingError) add(m Missing) {
	e.Count++
	if len(e.Missing) < maxMissing || !slices.ContainsFunc(e.Missing, func(other Missing) bool { return other.Ref == m.Ref }) {
		e.Missing = append(e.Missing, m)
	}
}

// Error lists what is missing, the first maxMissing by name and the rest by number.
func (e *MissingError) Error() string {
	listed := e.Missing[:min(len(e.Missing), maxMissing)]
	texts := make([]string, 0, len(listed)+1)
	for _, m := range listed {
		texts = append(texts, m.String())
	}
	if more := e.Count - len(listed); more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

// Objects holds the objects of a spec by reference; one that does not exist has no
// entry.
type Objects map[volume.Ref]*volume.Object

// Rendering is what a volume shows at one moment.
type Rendering struct {
	*volume.Payload
	// Skipped tells which variables the env files leave out.
	Skipped []Skipped
}

// Skipped names the variables that one env file leaves out, beside those that the spec
// says to be unknown. The names are sorted; they may hold whatever a variable can be
// called.
type Skipped struct {
	Path   string
	Format volume.EnvFormat
	// Invalid can't be held by the format, for their names or their values.
	Invalid []string
	// Dependent refer to variables that are unknown.
	Dependent []string
}

// Render returns what spec shows of objects. The tree shares the objects' byte slices.
//
// A later source wins over an earlier one for a path that comes from a key. The
// error is a *MissingError if required objects or keys are missing, for all of them
// together, a *TooLargeError if the spec asks for more than a volume can show; another
// one says which paths can't stand beside each other. None holds a value. A spec with
// podEnv or volume sources is not for Render; see Spec.Resolve.
//
// However often the spec names the objects, Options.MaxFiles and MaxEnvBytes bound the memory and the time.
func Render(spec *volume.Spec, objects Objects, opts Options) (*Rendering, error) {
	r := &renderer{spec: spec, objects: objects, opts: opts, refs: map[volume.Ref][]volume.Ref{}}
	for i := range spec.Sources {
		if err := r.add(&spec.Sources[i]); err != nil {
			return nil, err
		}
	}
	if r.missing.Count > 0 {
		missing := r.missing // without the rest of r: who waits keeps it
		return nil, &missing
	}
	tree := r.tree()
	if err := checkDirectories(tree.Files); err != nil {
		return nil, err
	}
	return &Rendering{Payload: tree, Skipped: r.skipped}, nil
}

// renderer collects what the sources of one spec show. It lives for one call of
// Render.
type renderer struct {
	spec    *volume.Spec
	objects Objects
	opts    Options
	// files holds the files of all sources in their order, with those that later ones replace.
	files []placed
	// refs has the Refs of the files of one object, which share them.
	refs    map[volume.Ref][]volume.Ref
	missing MissingError
	skipped []Skipped
	// envBytes is what joined files and the variables of all env files take; see MaxEnvBytes.
	envBytes int
}

// placed is a file and its place in the order of the sources.
type placed struct {
	volume.File
	place int
}

// tree returns the tree of all files, of each path the last one.
func (r *renderer) tree() *volume.Payload {
	slices.SortFunc(r.files, func(a, b placed) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), cmp.Compare(a.place, b.place))
	})
	n := 0
	for i := range r.files {
		if r.isLast(i) {
			n++
		}
	}
	tree := &volume.Payload{DirMode: directoryMode, Files: make([]volume.File, 0, n)}
	widen := r.opts.own(tree, r.spec)
	if widen {
		tree.DirMode |= groupDirectoryMode
	}
	for i := range r.files {
		if !r.isLast(i) {
			continue
		}
		file := r.files[i].File
		if widen {
			file.Mode |= groupFileMode
		}
		tree.Files = append(tree.Files, file)
	}
	return tree
}

// isLast says whether file i of the sorted ones is the last one of its path.
func (r *renderer) isLast(i int) bool {
	return i+1 == len(r.files) || r.files[i+1].Path != r.files[i].Path
}

// add adds the files of one source, and what it requires and does not find.
func (r *renderer) add(source *volume.Source) error {
	switch {
	case source.Projection != nil:
		r.addProjection(source.Projection, source.Field)
		return r.check(source.Field)
	case source.Env != nil:
		return r.addEnv(source.Env, source.Field)
	case source.Join != nil:
		return r.addJoin(source.Join, source.Field)
	case source.Versions != nil:
		return r.addVersions(source.Versions)
	default:
		return fmt.Errorf("%s: nothing to show yet", source.Field)
	}
}

func (r *renderer) addProjection(p *volume.Projection, at string) {
	object := r.object(p.Ref, p.Optional, at)
	if object == nil {
		return
	}
	refs := r.refs[p.Ref]
	if refs == nil {
		refs = []volume.Ref{p.Ref}
		r.refs[p.Ref] = refs
	}
	if len(p.Items) == 0 {
		for _, data := range []map[string][]byte{object.Data, object.BinaryData} {
			for key, value := range data {
				if r.opts.MaxFiles > 0 && len(r.files) > r.opts.MaxFiles {
					return
				}
				r.addFile(volume.File{Path: key, Data: value, Refs: refs, User: r.user(nil, p)}, r.spec.DefaultMode, p.DefaultMode)
			}
		}
	}
	for _, item := range p.Items {
		value, ok := object.Value(item.Key)
		switch {
		case ok:
			r.addFile(volume.File{Path: item.Path, Data: value, Refs: refs, User: r.user(item.User, p)}, item.Mode, r.spec.DefaultMode, p.DefaultMode)
		case !p.Optional:
			r.missing.addKey(Missing{Ref: p.Ref, Key: item.Key, Field: at}, object)
		}
	}
}

// addJoin adds a file of several keys. A part without a line feed at its end gets one, so that the next one begins a line.
func (r *renderer) addJoin(join *volume.JoinFile, at string) error {
	file := volume.File{Path: join.Path}
	for i := range join.Parts {
		part := &join.Parts[i]
		object := r.object(part.Ref, part.Optional, part.Field)
		if object == nil {
			continue
		}
		file.Refs = insertRef(file.Refs, part.Ref)
		value, ok := object.Value(part.Key)
		if !ok && !part.Optional {
			r.missing.addKey(Missing{Ref: part.Ref, Key: part.Key, Field: part.Field}, object)
		}
		r.envBytes += len(value) + 1
		if err := r.check(at); err != nil {
			return err
		}
		file.Data = append(file.Data, value...)
		if len(value) > 0 && value[len(value)-1] != '\n' {
			file.Data = append(file.Data, '\n')
		}
	}
	r.addFile(file, join.Mode, r.spec.DefaultMode)
	return r.check(at)
}

// shownObject is an object in a file of versions.
type shownObject struct {
	Kind            volume.Kind `json:"kind"`
	Namespace       string      `json:"namespace"`
	Name            string      `json:"name"`
	UID             types.UID   `json:"uid"`
	ResourceVersion string      `json:"resourceVersion"`
}

// addVersions adds a file that names the objects which the volume shows. It holds no value.
func (r *renderer) addVersions(versions *volume.VersionsFile) error {
	file := volume.File{Path: versions.Path}
	shown := struct {
		Objects []shownObject `json:"objects"`
	}{Objects: []shownObject{}}
	for _, ref := range r.spec.Refs() {
		if object := r.objects[ref]; object != nil && !r.opts.Refused[ref] {
			shown.Objects = append(shown.Objects, shownObject{ref.Kind, ref.Namespace, ref.Name, object.UID, object.ResourceVersion})
			file.Refs = insertRef(file.Refs, ref)
		}
	}
	var err error
	if file.Data, err = json.MarshalIndent(shown, "", "  "); err != nil {
		return fmt.Errorf("write the versions of the objects: %w", err)
	}
	file.Data = append(file.Data, '\n')
	r.addFile(file, versions.Mode, r.spec.DefaultMode)
	return nil
}

// insertRef adds a reference to sorted ones, once.
func insertRef(refs []volume.Ref, ref volume.Ref) []volume.Ref {
	i, found := slices.BinarySearchFunc(refs, ref, volume.CompareRefs)
	if found {
		return refs
	}
	return slices.Insert(refs, i, ref)
}

// object returns an object, or nil if it does not exist, and notes that if it must.
func (r *renderer) object(ref volume.Ref, optional bool, at string) *volume.Object {
	if r.opts.Refused[ref] {
		return nil
	}
	object := r.objects[ref]
	if object == nil && !optional && !r.opts.ForgiveDeleted {
		r.missing.add(Missing{Ref: ref, Field: at})
	}
	return object
}

// user returns the owner of a file, nil for the tree's: that of its item, or else that of the pod's own
// volume that names the object, unless the spec has one for all files.
func (r *renderer) user(ofItem *int64, p *volume.Projection) *int64 {
	if ofItem == nil && r.spec.UID == nil {
		return p.DefaultUser
	}
	return ofItem
}

// addFile adds a file with a mode: the first of modes that is not nil.
func (r *renderer) addFile(file volume.File, modes ...*fs.FileMode) {
	file.Mode = volume.DefaultMode
	if mode := cmp.Or(modes...); mode != nil {
		file.Mode = *mode
	}
	r.files = append(r.files, placed{file, len(r.files)})
}

// checkDirectories refuses a file where another file's path needs a directory. The
// spec's own paths were checked when it was parsed; a key without items can still
// meet one of them. The files are sorted, so those of one directory are neighbours.
func checkDirectories(files []volume.File) error {
	checked := ""
	for i := range files {
		p := files[i].Path
		dir := parent(p)
		if dir == checked {
			continue
		}
		checked = dir
		for ; dir != ""; dir = parent(dir) {
			if _, found := slices.BinarySearchFunc(files, dir, comparePath); found {
				return fmt.Errorf("path %q can't be shown: %q is a file of the same volume; map one of the two keys to another path", p, dir)
			}
		}
	}
	return nil
}

func comparePath(f volume.File, path string) int { return strings.Compare(f.Path, path) }

// parent returns the directory of a path, "" for the top.
func parent(path string) string { return path[:max(strings.LastIndexByte(path, '/'), 0)] }
