package domain

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// ServerChange changes what people write on a server. Nil fields stay as they are.
type ServerChange struct {
	Name        *string
	Description *string            // "" = none
	Metadata    map[string]*string // nil removes the item
	Tags        []string           // all but those of cloudfn, which stay; nil = as they are
}

// maxServerTags is how many tags a server may have in Nova.
const maxServerTags = 50

// Check finds what no server may have. The server's own state is left to On.
func (c ServerChange) Check() (faults []apperr.Field) {
	check := func(err error) {
		if err != nil {
			faults = append(faults, apperr.As(err).Fields...)
		}
	}
	if c.Name != nil {
		check(CheckName("name", *c.Name, MaxNameLength))
	}
	if c.Description != nil && *c.Description != "" {
		check(CheckPrintable("description", *c.Description, MaxNameLength))
	}
	for _, key := range slices.Sorted(maps.Keys(c.Metadata)) {
		switch {
		case isMark(key):
			check(apperr.InvalidField(metadataField(key), "must not begin with cloudfn: such items are not for others"))
			continue
		case IsDots(key) && c.Metadata[key] == nil:
			check(apperr.InvalidField(metadataField(key), "cannot be removed: it changes the path of Nova's call"))
			continue
		}
		faults = append(faults, CheckMetadata("metadata", map[string]string{key: Deref(c.Metadata[key])})...)
	}
	own := map[string]int{}
	var tags []string
	for n, tag := range c.Tags {
		if !IsOwnTag(tag) { // On knows whether the server has it
			own[fmt.Sprintf("tags[%d]", len(tags))] = n
			tags = append(tags, tag)
		}
	}
	for _, fault := range CheckTags("tags", tags) {
		fault.Field = fmt.Sprintf("tags[%d]", own[fault.Field])
		faults = append(faults, fault)
	}
	return faults
}

func metadataField(key string) string {
	if key == "" {
		return "metadata"
	}
	return "metadata." + key
}

// IsDots reports whether a text changes the path that it is an element of.
func IsDots(text string) bool { return text == "." || text == ".." }

// isMark reports whether OpenStack's tables may take a text for one that begins as the marks of cloudfn do.
func isMark(text string) bool { return strings.HasPrefix(inTables(text, "s"), "cloudfn") }

// IsOwnTag reports whether cloudfn finds servers by such a tag, so that others neither add nor remove it.
func IsOwnTag(tag string) bool {
	return isMark(tag) || uuid.Validate(strings.TrimRight(tag, " ")) == nil
}

// ServerUpdate is what a ServerChange has to do on a server.
type ServerUpdate struct {
	Name, Description *string // nil = nothing
	Unset             []string
	Set               map[string]string
	Untag, Tag        []string
}

// IsEmpty reports whether there is nothing to do.
func (u ServerUpdate) IsEmpty() bool {
	return u.Name == nil && u.Description == nil && len(u.Unset)+len(u.Set)+len(u.Untag)+len(u.Tag) == 0
}

// On returns what there is to do on a server, and what in the change conflicts with what it has.
func (c ServerChange) On(s Server) (u ServerUpdate, faults []apperr.Field) {
	if c.Name != nil && *c.Name != s.Name {
		u.Name = c.Name
	}
	if c.Description != nil && *c.Description != s.Description {
		u.Description = c.Description
	}
	stays := maps.Clone(s.Metadata)
	for _, key := range slices.Sorted(maps.Keys(c.Metadata)) {
		before, has := s.Metadata[key]
		switch value := c.Metadata[key]; {
		case value == nil && has:
			u.Unset = append(u.Unset, key)
			delete(stays, key)
		case value != nil && (!has || before != *value):
			if u.Set == nil {
				u.Set = map[string]string{}
			}
			u.Set[key] = *value
		}
	}
	others := slices.Sorted(maps.Keys(stays))
	for _, key := range u.Unset { // Nova's tables delete both
		if same := EqualInTables(key, others); same >= 0 {
			faults = append(faults, apperr.Field{Field: metadataField(key), Detail: fmt.Sprintf(
				"is the same as %q for OpenStack, which would remove that, too", others[same])})
		}
	}
	if c.Tags != nil {
		faults = append(faults, c.changeTags(&u, s)...)
	}
	return u, faults
}

// changeTags finds the tags to remove and to add.
func (c ServerChange) changeTags(u *ServerUpdate, s Server) (faults []apperr.Field) {
	count := 0
	for _, tag := range s.Tags {
		switch {
		case IsOwnTag(tag):
			count++
		case !slices.Contains(c.Tags, tag):
			u.Untag = append(u.Untag, tag)
		}
	}
	for n, tag := range c.Tags {
		switch has := slices.Contains(s.Tags, tag); {
		case IsOwnTag(tag) && !has:
			faults = append(faults, apperr.As(checkTag(fmt.Sprintf("tags[%d]", n), tag)).Fields...)
		case IsOwnTag(tag):
		case !has:
			u.Tag = append(u.Tag, tag)
			fallthrough
		default:
			count++
		}
	}
	if count > maxServerTags {
		faults = append(faults, apperr.Field{Field: "tags", Detail: fmt.Sprintf(
			"the server would have %d tags with those of cloudfn: at most %d", count, maxServerTags)})
	}
	return faults
}

// Apply returns the server with the update.
func (u ServerUpdate) Apply(s Server) Server {
	if u.Name != nil {
		s.Name = *u.Name
	}
	if u.Description != nil {
		s.Description = *u.Description
	}
	s.Metadata = maps.Clone(s.Metadata)
	for _, key := range u.Unset {
		delete(s.Metadata, key)
	}
	if s.Metadata == nil {
		s.Metadata = map[string]string{}
	}
	maps.Copy(s.Metadata, u.Set)
	s.Tags = slices.DeleteFunc(slices.Clone(s.Tags), func(tag string) bool { return slices.Contains(u.Untag, tag) })
	s.Tags = append(s.Tags, u.Tag...)
	return s
}
